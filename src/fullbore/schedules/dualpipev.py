"""DualPipeV: a V in which forwards overlap with the backwards of other microbatches."""

from __future__ import annotations

from fullbore.ir import Placement, Schedule
from fullbore.schedules.family import Family
from fullbore.schedules.pattern import play


def build(placement: Placement, num_microbatches: int) -> Schedule:
    """DeepSeek's eight steps.

    They need 2P microbatches. With fewer, the *last* ones of 2P are kept, because it is at the end
    that backwards are split. If F = I = W = 1, that takes the time of ZBV up to M = P and at most
    P/2, rounded up, more from there to 2P; with the first ones it would take up to P-1 more.
    """
    num_ranks = placement.num_ranks
    filled = max(2 * num_ranks, num_microbatches)
    keep = range(filled - num_microbatches, filled)
    programs = (
        play(_pattern(rank, num_ranks, filled), placement.stages_of(rank), keep)
        for rank in range(num_ranks)
    )
    return Schedule(tuple(map(tuple, programs)), placement, num_microbatches)


def _pattern(rank: int, num_ranks: int, num_microbatches: int) -> str:
    below = num_ranks - 1 - rank  # ranks that lie deeper in the V
    pairs = "F0+B1 F1+B0 " * (num_microbatches - num_ranks - below)
    if below == 0:
        # At the bottom of the V the very first pair would delay its B, for which all ranks wait.
        pairs = pairs.replace("F0+B1", "F0 B1", 1)
    # Step 6 alternates the two stages, in full for its first half, split for the second, whose
    # weight gradients and those of step 7 wait in a queue.
    closing = "10" * (rank + 1)
    full, split = closing[: rank + 1], closing[rank + 1 :]
    queue = split + "0" * below
    steps = (
        "F0 " * (2 * below),
        "F0 F1 " * (rank + 1),
        "I1 W1 F1 " * below,
        pairs,
        "B1 F1+B0 " * below,
        "".join(f"B{i} " for i in full) + "".join(f"I{i} " for i in split),
        "".join(f"W{i} I0 " for i in queue[:below]),
        "".join(f"W{i} " for i in queue[below:]),
    )
    return "".join(steps)


FAMILY = Family(
    name="dualpipev",
    build=build,
    shape="vee",
    description="V of two stages a rank; forwards overlap with backwards of other microbatches",
    source="DeepSeek-AI 2024, DeepSeek-V3, arXiv:2412.19437; github.com/deepseek-ai/DualPipe",
    aliases=("DualPipeV",),
    instead="interleaved_zero_bubble",
)
