"""Interleaved 1F1B: 1F1B over several stages a rank, which divides the bubble by their number."""

from __future__ import annotations

from collections.abc import Sequence

from fullbore.errors import ParameterError
from fullbore.ir import Action, Kind, Placement, Schedule
from fullbore.schedules.family import Family
from fullbore.schedules.rounds import in_rounds, round_sizes, weave


def build(
    placement: Placement, num_microbatches: int, *, round_size: int | None = None
) -> Schedule:
    """Microbatches in rounds of about P, each round through all local stages; or in rounds of at
    least ``round_size``, as Llama 3 (arXiv:2407.21783, section 3.3.2).

    Rank r runs ahead by ``(V-1) * round + 2 (P-1-r)`` forwards (section 2.2 of the paper, with
    rounds of other sizes than P): the first round through all local stages but the last, and two
    for each rank that a microbatch still has to pass on its way down and back.
    """
    num_ranks = placement.num_ranks
    least = num_ranks if round_size is None else round_size
    if least < num_ranks:
        raise ParameterError(
            f"interleaved_1f1b: round_size must be at least the number of ranks, {num_ranks}, or "
            f"ranks wait for each other; got {least}"
        )
    sizes = round_sizes(num_microbatches, least)
    programs = (
        _program(placement.stages_of(rank), sizes, 2 * (num_ranks - 1 - rank))
        for rank in range(num_ranks)
    )
    return Schedule(tuple(map(tuple, programs)), placement, num_microbatches)


def _program(stages: tuple[int, ...], sizes: Sequence[int], distance: int) -> list[Action]:
    warmup = (len(stages) - 1) * sizes[0] + distance
    forwards = in_rounds(Kind.F, stages, sizes)
    backwards = in_rounds(Kind.B, stages[::-1], sizes)
    return forwards[:warmup] + weave(forwards[warmup:], backwards)


FAMILY = Family(
    name="interleaved_1f1b",
    build=build,
    shape="loop",
    description="1f1b with several stages a rank; a smaller bubble for more messages",
    source="Narayanan et al. 2021, Megatron-LM, arXiv:2104.04473, section 2.2",
    aliases=("Interleaved1F1B",),
    options={"round_size": "how many microbatches a round holds at least; P unless given"},
)
