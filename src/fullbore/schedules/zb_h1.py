"""ZB-H1: 1F1B with split backwards, at the memory of 1F1B."""

from __future__ import annotations

from fullbore.ir import Action, Kind, Placement, Schedule
from fullbore.schedules.family import Family
from fullbore.schedules.rounds import in_rounds, weave


def build(placement: Placement, num_microbatches: int) -> Schedule:
    """Section 2.1 of the paper: rank r runs P-1-r forwards ahead and keeps r weight gradients
    waiting, which fill what would be idle time at the end."""
    return ahead(placement, num_microbatches, times=1)


def ahead(placement: Placement, num_microbatches: int, *, times: int) -> Schedule:
    """The handcrafted schedules: ``times`` as many forwards ahead as 1F1B, and as many weight
    gradients behind, so that every rank holds as many activations as the first."""
    last = placement.num_stages - 1
    programs = (
        _program(stage, num_microbatches, times * (last - stage), delay=times * stage)
        for stage in range(placement.num_stages)
    )
    return Schedule(tuple(map(tuple, programs)), placement, num_microbatches)


def _program(stage: int, num_microbatches: int, warmup: int, *, delay: int) -> list[Action]:
    forwards, inputs, weights = (
        in_rounds(kind, [stage], [num_microbatches]) for kind in (Kind.F, Kind.I, Kind.W)
    )
    return forwards[:warmup] + weave(forwards[warmup:], inputs, [*[None] * delay, *weights])


FAMILY = Family(
    name="zb_h1",
    build=build,
    shape="linear",
    description="1f1b with split backwards: a smaller bubble, at its memory",
    source="Qi et al. 2024, Zero Bubble Pipeline Parallelism, arXiv:2401.10241, section 2.1",
    instead="interleaved_zero_bubble",
)
