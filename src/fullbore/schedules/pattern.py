"""What the V-shaped families are made of: patterns that name kinds and let microbatches count up.

Rank ``r`` of ``P`` holds stage ``r`` on the way down (index 0 in a pattern) and ``2P-1-r`` on the
way back up (index 1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import count

from fullbore.ir import Action, Kind, fuse


def play(pattern: str, stages: Sequence[int], keep: range) -> list[Action]:
    """The program that a pattern stands for.

    Args:
        pattern: steps separated by blanks. A step is a kind and the one-digit index of a local
            stage (``F0``, ``I1``), or two of them to overlap (``F0+B1``). Each takes the next
            microbatch of its kind and stage; a full backward B moves both I and W on.
        stages: the rank's stages, which the indices select.
        keep: the microbatches that exist, to be renumbered from 0. All others are left out, and an
            overlap of which one part is left becomes that part. Microbatches do not depend on each
            other, so what is left of programs that can run can still run.
    """
    counters: defaultdict[str, count[int]] = defaultdict(count)
    actions: list[Action] = []
    for step in pattern.split():
        parts: list[Action] = []
        for part in step.split("+"):
            kind, index = part[0], part[1]
            microbatch = next(counters[("I" if kind == "B" else kind) + index])
            if kind == "B":
                next(counters["W" + index])
            if microbatch in keep:
                parts.append(Action(stages[int(index)], Kind[kind], microbatch - keep.start))
        if parts:
            actions.append(parts[0] if len(parts) == 1 else fuse(Kind.OVERLAP_F_B, *parts))
    return actions
