"""ZBV: a V of two stages a rank and split backwards.

If F, I and W cost the same, no rank is idle between its first action and its last.
"""

from __future__ import annotations

from fullbore.ir import Placement, Schedule
from fullbore.schedules.family import Family
from fullbore.schedules.pattern import play


def build(placement: Placement, num_microbatches: int) -> Schedule:
    """The order of section 6 of the paper, on the first ``num_microbatches`` microbatches of it.

    The pattern needs 2P-1 microbatches to fill; those that do not exist are left out.
    """
    num_ranks = placement.num_ranks
    filled = max(2 * num_ranks - 1, num_microbatches)
    programs = (
        play(_pattern(rank, num_ranks, filled), placement.stages_of(rank), range(num_microbatches))
        for rank in range(num_ranks)
    )
    return Schedule(tuple(map(tuple, programs)), placement, num_microbatches)


def _pattern(rank: int, num_ranks: int, num_microbatches: int) -> str:
    below = num_ranks - 1 - rank  # ranks that lie deeper in the V
    return (
        "F0 " * (2 * below + 1)
        + "F1 F0 " * rank
        + "F1 I1 W1 " * (below + 1)
        + "F0 I0 W0 F1 I1 W1 " * (num_microbatches - num_ranks - below)
        + "I0 W0 F1 I1 W1 " * below
        + "I0 I1 " * rank
        + "I0 W0 " * (below + 1)
        + "W1 " * rank
        + "W0 " * rank
    )


FAMILY = Family(
    name="zbv_zero_bubble",
    build=build,
    shape="vee",
    description="V of two stages a rank, split backwards; smallest bubble at the memory of 1f1b",
    source="Qi et al. 2024, Zero Bubble Pipeline Parallelism, arXiv:2401.10241, section 6",
    aliases=("ZBVZeroBubble", "zbv"),
    instead="interleaved_zero_bubble",
)
