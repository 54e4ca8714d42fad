"""V-Half: a V at half of the memory of 1F1B."""

from __future__ import annotations

from fullbore.ir import Placement, Schedule
from fullbore.schedules.block import repeat
from fullbore.schedules.family import Family


def build(placement: Placement, num_microbatches: int) -> Schedule:
    """The building block of table 9 of the paper: on the way down F takes two slots from rank to
    rank and so does I on the way up, which leaves room for the passes that come the other way."""
    num_ranks = placement.num_ranks
    # Three slots more at the turn, or slots of a rank would coincide.
    turn = 3 if num_ranks % 2 == 0 else 0
    starts = [
        (
            2 * rank,
            3 * num_ranks - rank - 2,
            3 * num_ranks + turn + 2 * rank - 1,
            6 * num_ranks + turn - rank - 2,
        )
        for rank in range(num_ranks)
    ]
    return repeat(placement, num_microbatches, starts, limit=(num_ranks + 2) // 2)


FAMILY = Family(
    name="v_half",
    build=build,
    shape="vee",
    description="V of two stages a rank, split backwards; half of the memory of 1f1b",
    source="Qi et al. 2024, Pipeline Parallelism with Controllable Memory, arXiv:2405.15362",
    instead="gis",
)
