"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from fullbore.ir import Kind, Placement, Schedule
from fullbore.schedules.family import Family
from fullbore.schedules.rounds import in_rounds


def build(placement: Placement, num_microbatches: int) -> Schedule:
    """Every rank runs F for all microbatches, then B for all, both from microbatch 0 on."""
    all_at_once = [num_microbatches]
    programs = (
        in_rounds(Kind.F, [stage], all_at_once) + in_rounds(Kind.B, [stage], all_at_once)
        for stage in range(placement.num_stages)
    )
    return Schedule(tuple(map(tuple, programs)), placement, num_microbatches)


FAMILY = Family(
    name="gpipe",
    build=build,
    shape="linear",
    description="all forwards, then all backwards",
    source="Huang et al. 2019, GPipe, arXiv:1811.06965",
    aliases=("GPipe",),
    instead="looped_bfs",
)
