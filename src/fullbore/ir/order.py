"""One order in which all ranks' actions can run, or who waits for what."""

from __future__ import annotations

from typing import NamedTuple

from fullbore.ir.action import Action
from fullbore.ir.deps import Dependencies
from fullbore.ir.schedule import Schedule


class Blocked(NamedTuple):
    """A rank that cannot go on: it stands at ``step`` with ``action`` and misses ``missing``."""

    rank: int
    step: int
    action: Action
    missing: int


class Order(NamedTuple):
    """``steps`` as ``(rank, step)`` in an order that respects every dependency; ``blocked`` names
    the ranks that never finish (empty if all do)."""

    steps: tuple[tuple[int, int], ...]
    blocked: tuple[Blocked, ...]


def executable_order(schedule: Schedule, deps: Dependencies | None = None) -> Order:
    """Interleave the programs round by round, one action a rank and round, as needs allow.

    Sends never block (the ``buffered`` model). Takes time linear in the number of actions.
    """
    deps = Dependencies(schedule) if deps is None else deps
    programs, needs, gives = schedule.programs, deps.needs, deps.gives
    holds = bytearray(deps.size)
    heads = [0] * len(programs)
    waiting: dict[int, list[int]] = {}
    steps: list[tuple[int, int]] = []
    active = [rank for rank, program in enumerate(programs) if program]
    while active:
        following: list[int] = []
        for rank in active:
            program, head = programs[rank], heads[rank]
            action = program[head]
            for fact in needs(action):
                if not holds[fact]:
                    waiting.setdefault(fact, []).append(rank)
                    break
            else:
                steps.append((rank, head))
                for fact in gives(action):
                    holds[fact] = 1
                    if fact in waiting:
                        following += waiting.pop(fact)
                heads[rank] = head = head + 1
                if head < len(program):
                    following.append(rank)
        active = sorted(following)
    stuck = (
        Blocked(rank, heads[rank], programs[rank][heads[rank]], missing)
        for missing, ranks in waiting.items()
        for rank in ranks
    )
    return Order(tuple(steps), tuple(sorted(stuck)))
