"""The order that needs least memory."""

from __future__ import annotations

from fullbore.ir import Action, Kind, Placement, Schedule


def one_by_one(placement: Placement, num_microbatches: int) -> Schedule:
    """One microbatch at a time goes down all stages and back. Where this order does not fit the
    memory, none does."""
    stages = range(placement.num_stages)
    programs: list[list[Action]] = [[] for _ in range(placement.num_ranks)]
    for microbatch in range(num_microbatches):
        for kind, order in ((Kind.F, stages), (Kind.B, reversed(stages))):
            for stage in order:
                programs[placement.ranks[stage]].append(Action(stage, kind, microbatch))
    return Schedule(tuple(map(tuple, programs)), placement, num_microbatches, name="plan")
