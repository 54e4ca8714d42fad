"""What the looping families are made of: rounds of microbatches, and woven columns.

A looping rank holds every P-th stage. It takes the microbatches in rounds, and each round through
all its stages in turn, so that a microbatch comes back from the other ranks about when it is
wanted again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from fullbore.ir import Action, Kind


def round_sizes(num_microbatches: int, num_ranks: int) -> list[int]:
    """How many microbatches each round holds, the longer rounds first.

    There are ``max(1, M // P)`` rounds, as even as they can be. Each holds at least P microbatches
    (or all of them, if there are fewer), which is what keeps a rank's next stage supplied.
    """
    count = max(1, num_microbatches // num_ranks)
    size, longer = divmod(num_microbatches, count)
    return [size + 1] * longer + [size] * (count - longer)


def in_rounds(kind: Kind, stages: Sequence[int], sizes: Iterable[int]) -> list[Action]:
    """``kind`` for every microbatch: round by round, in a round stage by stage in that order."""
    actions: list[Action] = []
    start = 0
    for size in sizes:
        microbatches = range(start, start + size)
        for stage in stages:
            actions += [Action(stage, kind, microbatch) for microbatch in microbatches]
        start += size
    return actions


def weave(*columns: Sequence[Action | None]) -> list[Action]:
    """One action of each column in turn, to the end of the longest; ``None`` gives up the turn."""
    return [action for row in zip_longest(*columns) for action in row if action is not None]
