"""Forward only: what evaluation and inference run, on any placement."""

from __future__ import annotations

from fullbore.ir import Kind, Placement, Schedule
from fullbore.schedules.family import Family
from fullbore.schedules.rounds import in_rounds, round_sizes


def build(placement: Placement, num_microbatches: int) -> Schedule:
    """Every rank takes its stages in ascending order.

    On a loop a round of microbatches passes all local stages before the next round starts, so that
    few wait between stages. Elsewhere a microbatch may need long to come back, and all of them
    pass a stage before the next one has its turn. Both orders run on every placement.
    """
    looped = placement.shape in ("linear", "loop")
    sizes = round_sizes(num_microbatches, placement.num_ranks) if looped else [num_microbatches]
    programs = (
        in_rounds(Kind.F, placement.stages_of(rank), sizes) for rank in range(placement.num_ranks)
    )
    return Schedule(tuple(map(tuple, programs)), placement, num_microbatches, forward_only=True)


FAMILY = Family(
    name="forward_only",
    build=build,
    shape="any",
    description="no backwards: evaluation and inference, on any placement",
    source="common practice",
)
