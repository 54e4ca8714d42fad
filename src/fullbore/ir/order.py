"""One order in which all ranks' actions can run, or who waits for what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fullbore.ir.action import Action
from fullbore.ir.deps import Dependencies
from fullbore.ir.kinds import KINDS, Group
from fullbore.ir.schedule import Program, Schedule


class Blocked(NamedTuple):
    """A rank that cannot go on: it stands at ``step`` with ``action`` and misses ``missing``."""

    rank: int
    step: int
    action: Action
    missing: int


class Order(NamedTuple):
    """``steps`` as ``(rank, step)``, in an order that respects every dependency.

    ``blocked`` names the ranks that never finish; it is empty if all do.
    """

    steps: tuple[tuple[int, int], ...]
    blocked: tuple[Blocked, ...]


def executable_order(schedule: Schedule, deps: Dependencies | None = None) -> Order:
    """Interleave the programs round by round, one action a rank and round, as needs allow.

    Sends never block (the ``buffered`` model); the halves of a batched pair are posted together,
    so a pair takes its place in the order once it has sent. Takes time and memory linear in the
    number of actions, however many microbatches the schedule claims to have.
    """
    deps = Dependencies(schedule) if deps is None else deps
    needs, gives = deps.needs, deps.gives
    unrolled = [_unroll(program) for program in schedule.programs]
    holds: set[int] = set()
    heads = [0] * len(unrolled)
    waiting: dict[int, list[int]] = {}
    steps: list[tuple[int, int]] = []
    active = [rank for rank, (program, _) in enumerate(unrolled) if program]
    while active:
        following: list[int] = []
        for rank in active:
            (program, numbers), head = unrolled[rank], heads[rank]
            action = program[head]
            for fact in needs(action):
                if fact not in holds:
                    waiting.setdefault(fact, []).append(rank)
                    break
            else:
                if not head or numbers[head - 1] != numbers[head]:
                    steps.append((rank, numbers[head]))
                for fact in gives(action):
                    holds.add(fact)
                    if fact in waiting:
                        following += waiting.pop(fact)
                heads[rank] = head = head + 1
                if head < len(program):
                    following.append(rank)
        active = sorted(following)
    stuck = []
    for missing, ranks in waiting.items():
        for rank in ranks:
            step = unrolled[rank][1][heads[rank]]
            stuck.append(Blocked(rank, step, schedule.programs[rank][step], missing))
    return Order(tuple(steps), tuple(sorted(stuck)))


def _unroll(program: Program) -> tuple[Sequence[Action], Sequence[int]]:
    """The actions with batched pairs taken apart, and the step that each belongs to."""
    pairs = [kind for kind, info in KINDS.items() if info.fused and info.group is not Group.COMPUTE]
    if not any(action.kind in pairs for action in program):
        return program, range(len(program))
    halves = [
        (step, half)
        for step, action in enumerate(program)
        for half in (action.leaves if action.kind in pairs else (action,))
    ]
    return [half for _, half in halves], [step for step, _ in halves]
