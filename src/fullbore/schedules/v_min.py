"""V-Min: a V at a third of the memory of 1F1B."""

from __future__ import annotations

from fullbore.ir import Placement, Schedule
from fullbore.schedules.block import repeat
from fullbore.schedules.family import Family


def build(placement: Placement, num_microbatches: int) -> Schedule:
    """The building block of table 8 of the paper: F, F, I and I follow each other from rank to rank
    without a gap, so that activations live as short as can be.

    The block is laid out for F = I = W. Where they differ, ranks wait in every period.
    """
    num_ranks = placement.num_ranks
    # Two slots more at the turn, or slots of a rank would coincide.
    turn = 2 if num_ranks % 3 == 0 else 0
    starts = [
        (
            rank,
            2 * num_ranks - rank - 1,
            2 * num_ranks + turn + rank,
            4 * num_ranks + turn - rank - 1,
        )
        for rank in range(num_ranks)
    ]
    return repeat(placement, num_microbatches, starts, limit=(num_ranks + 4) // 3)


FAMILY = Family(
    name="v_min",
    build=build,
    shape="vee",
    description="V of two stages a rank, split backwards; a third of the memory of 1f1b",
    source="Qi et al. 2024, Pipeline Parallelism with Controllable Memory, arXiv:2405.15362",
    instead="gis",
)
