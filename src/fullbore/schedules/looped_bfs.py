"""Breadth-first looping: each local stage takes all microbatches before the next one starts."""

from __future__ import annotations

from fullbore.ir import Action, Kind, Placement, Schedule
from fullbore.schedules.family import Family
from fullbore.schedules.rounds import in_rounds


def build(placement: Placement, num_microbatches: int) -> Schedule:
    """Forwards stage by stage, then the backwards in exactly the reverse order.

    So gradients accumulate from the last microbatch to the first.
    """
    programs = (
        _program(placement.stages_of(rank), num_microbatches) for rank in range(placement.num_ranks)
    )
    return Schedule(tuple(map(tuple, programs)), placement, num_microbatches)


def _program(stages: tuple[int, ...], num_microbatches: int) -> list[Action]:
    forwards = in_rounds(Kind.F, stages, [num_microbatches])
    return forwards + [Action(done.stage, Kind.B, done.microbatch) for done in reversed(forwards)]


FAMILY = Family(
    name="looped_bfs",
    build=build,
    shape="loop",
    description="all microbatches through one local stage, then through the next",
    source="Lamy-Poirier 2022, Breadth-First Pipeline Parallelism, arXiv:2211.05953",
    aliases=("LoopedBFS",),
)
