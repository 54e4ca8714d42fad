"""Interleaved zero bubble (ZB1P): weight gradients wait and fill what would be idle time."""

from __future__ import annotations

from collections.abc import Sequence

from fullbore.ir import Action, Kind, Placement, Schedule
from fullbore.schedules.family import Family
from fullbore.schedules.rounds import in_rounds, round_sizes, weave


def build(placement: Placement, num_microbatches: int) -> Schedule:
    """As interleaved 1F1B, with the backward split and half the distance to run ahead.

    Rank r keeps ``r`` weight gradients waiting: the deeper a rank lies, the sooner others need its
    input gradients, and the longer it would be idle at the end.
    """
    sizes, num_ranks = round_sizes(num_microbatches, placement.num_ranks), placement.num_ranks
    programs = (
        _program(placement.stages_of(rank), sizes, num_ranks - 1 - rank, delay=rank)
        for rank in range(num_ranks)
    )
    return Schedule(tuple(map(tuple, programs)), placement, num_microbatches)


def _program(
    stages: tuple[int, ...], sizes: Sequence[int], distance: int, *, delay: int
) -> list[Action]:
    warmup = (len(stages) - 1) * sizes[0] + distance
    forwards = in_rounds(Kind.F, stages, sizes)
    inputs = in_rounds(Kind.I, stages[::-1], sizes)
    weights = in_rounds(Kind.W, stages[::-1], sizes)
    return forwards[:warmup] + weave(forwards[warmup:], inputs, [*[None] * delay, *weights])


FAMILY = Family(
    name="interleaved_zero_bubble",
    build=build,
    shape="loop",
    description="interleaved 1f1b with split backwards; weight gradients fill the bubble",
    source="Qi et al. 2024, Zero Bubble Pipeline Parallelism, arXiv:2401.10241, ZB-H1",
    aliases=("InterleavedZeroBubble",),
)
