"""1F1B: as soon as backwards can start, one forward and one backward in turn."""

from __future__ import annotations

from fullbore.ir import Action, Kind, Placement, Schedule
from fullbore.schedules.family import Family
from fullbore.schedules.rounds import in_rounds, weave


def build(placement: Placement, num_microbatches: int) -> Schedule:
    """Rank r runs ahead by ``P-1-r`` forwards, one for each rank behind it.

    With fewer microbatches than that, all forwards come first.
    """
    programs = (
        _program(stage, placement.num_ranks - 1 - stage, num_microbatches)
        for stage in range(placement.num_stages)
    )
    return Schedule(tuple(map(tuple, programs)), placement, num_microbatches)


def _program(stage: int, warmup: int, num_microbatches: int) -> list[Action]:
    forwards = in_rounds(Kind.F, [stage], [num_microbatches])
    backwards = in_rounds(Kind.B, [stage], [num_microbatches])
    return forwards[:warmup] + weave(forwards[warmup:], backwards)


FAMILY = Family(
    name="1f1b",
    build=build,
    shape="linear",
    description="one forward, one backward; few activations in flight",
    source="Narayanan et al. 2021, PipeDream-Flush, arXiv:2006.09503; Fan et al. 2021, DAPPLE",
    aliases=("1F1B",),
)
