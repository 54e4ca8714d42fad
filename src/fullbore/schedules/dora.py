"""DORA: interleaved 1F1B in which ranks keep weight gradients for the very end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from fullbore.ir import Action, Kind, Placement, Schedule
from fullbore.schedules.family import Family
from fullbore.schedules.rounds import in_rounds, round_sizes


def build(placement: Placement, num_microbatches: int) -> Schedule:
    """The order of Monarch's generator. Rank r runs ahead as far as with interleaved 1F1B, then one
    forward and one backward in turn. The weight gradients of the first 2r of these backwards (r, if
    M = P) come at the very end, so that the input gradients for which other ranks wait come sooner.

    With more than four ranks the first ones run a few backwards alone, before the first forward of
    their second stage that comes in turn.
    """
    num_ranks = placement.num_ranks
    sizes = round_sizes(num_microbatches, num_ranks)
    programs = (
        _program(
            placement.stages_of(rank),
            sizes,
            2 * (num_ranks - 1 - rank),
            late=rank if num_microbatches == num_ranks else 2 * rank,
            alone=max((num_ranks - 3) // 2 - rank, 0),
        )
        for rank in range(num_ranks)
    )
    return Schedule(tuple(map(tuple, programs)), placement, num_microbatches)


def _program(
    stages: tuple[int, ...], sizes: Sequence[int], distance: int, *, late: int, alone: int
) -> list[Action]:
    warmup = (len(stages) - 1) * sizes[0] + distance
    forwards = in_rounds(Kind.F, stages, sizes)
    backwards = [
        (full._replace(kind=Kind.I), full._replace(kind=Kind.W))
        for full in in_rounds(Kind.B, stages[::-1], sizes)
    ]
    program, turns = forwards[:warmup], forwards[warmup:]
    second = next((n for n, forward in enumerate(turns) if forward.stage in stages[1:2]), None)
    delayed: list[Action] = []
    done = 0
    for turn, forward in enumerate(turns):
        if turn == second:
            program += chain(*backwards[done : done + alone])
            done += alone
        inputs, weights = backwards[done]
        done += 1
        program += (forward, inputs)
        (delayed if turn < late else program).append(weights)
    return _merged([*program, *chain(*backwards[done:]), *delayed])


def _merged(program: Sequence[Action]) -> list[Action]:
    """With a full backward for every I that its W follows at once."""
    merged: list[Action] = []
    for action in program:
        if action.kind is Kind.W and merged[-1] == action._replace(kind=Kind.I):
            merged[-1] = action._replace(kind=Kind.B)
        else:
            merged.append(action)
    return merged


FAMILY = Family(
    name="dora",
    build=build,
    shape="loop",
    description="interleaved 1f1b that keeps a few weight gradients for the very end",
    source="Monarch, monarch/parallel/pipelining/scheduler.py, github.com/meta-pytorch/monarch",
)
