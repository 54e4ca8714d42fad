"""GIS: grouped interleaved 1F1B with split backwards, for less memory."""

from __future__ import annotations

from collections.abc import Sequence

from fullbore.errors import ParameterError
from fullbore.ir import Action, Kind, Placement, Schedule
from fullbore.schedules.family import Family
from fullbore.schedules.rounds import in_rounds, weave


def build(
    placement: Placement, num_microbatches: int, *, group_size: int | None = None
) -> Schedule:
    """Interleaved 1F1B in groups of P microbatches, or of ``group_size``, with half the distance to
    run ahead: I sends its gradient on before W runs.

    A group of g takes (g (V-1) + P) / V microbatches of memory. Below P it comes back before a rank
    has anything else to do, and below P/2 it would have to wait for itself.
    """
    num_ranks = placement.num_ranks
    size = num_ranks if group_size is None else group_size
    if not (num_ranks + 1) // 2 <= size <= num_ranks:
        raise ParameterError(
            f"gis: group_size must be from P/2 to P, here {(num_ranks + 1) // 2} to {num_ranks}; "
            f"got {size}. Use interleaved_zero_bubble for larger rounds"
        )
    full, rest = divmod(num_microbatches, size)
    sizes = [size] * full + [rest] * (rest > 0)
    programs = (
        _program(placement.stages_of(rank), sizes, num_ranks - 1 - rank)
        for rank in range(num_ranks)
    )
    return Schedule(tuple(map(tuple, programs)), placement, num_microbatches)


def _program(stages: tuple[int, ...], sizes: Sequence[int], distance: int) -> list[Action]:
    warmup = (len(stages) - 1) * sizes[0] + distance
    forwards = in_rounds(Kind.F, stages, sizes)
    inputs = in_rounds(Kind.I, stages[::-1], sizes)
    weights = in_rounds(Kind.W, stages[::-1], sizes)
    return forwards[:warmup] + weave(forwards[warmup:], inputs, weights)


FAMILY = Family(
    name="gis",
    build=build,
    shape="loop",
    description="interleaved 1f1b in groups, each W right after its I; small groups save memory",
    source="Wan et al. 2025, PipeOffload, arXiv:2503.01328",
    options={"group_size": "microbatches in a group, from P/2 to P; P unless given"},
)
