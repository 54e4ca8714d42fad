"""Join a forward and a backward into one action, and take them apart."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from fullbore.ir import Action, Dependencies, Form, Kind, Schedule, fuse
from fullbore.passes.base import EITHER, Pass, who_waits

_BACKWARD = (Kind.B, Kind.I)


@dataclass(frozen=True)
class FuseOverlap(Pass):
    """Neighbouring ``F`` and ``B`` or ``I`` of one rank, in either order, become ``OVERLAP_F_B``.

    The two must be able to start together, so neither may need the other, not even through other
    ranks. All programs are run together: a rank whose first half could start waits for the second;
    when nobody can go on otherwise, the lowest such rank runs its first half alone. The result can
    run, as it just did. Refuses an order that cannot run and says who waits for what.
    """

    name: ClassVar[str] = "fuse_overlap"
    takes: ClassVar[tuple[Form, ...]] = (Form.COMPUTE,)

    def apply(self, schedule: Schedule) -> Schedule:
        """Walk all programs together."""
        walk = _Walk(schedule)
        ready = deque(range(schedule.num_ranks))
        while ready:
            while ready:
                ready += walk.advance(ready.popleft())
            if walk.held:
                ready += walk.release(min(walk.held))
        if any(walk.heads[rank] < len(p) for rank, p in enumerate(schedule.programs)):
            raise self.refusal(schedule, who_waits(schedule))
        return schedule.with_programs(walk.results)


@dataclass(frozen=True)
class ExpandOverlap(Pass):
    """The parts of every ``OVERLAP_F_B`` run one after another, in the order they are written."""

    name: ClassVar[str] = "expand_overlap"
    takes: ClassVar[tuple[Form, ...]] = EITHER

    def apply(self, schedule: Schedule) -> Schedule:
        """Expand within each program."""
        return schedule.with_programs(
            [
                [
                    part
                    for a in program
                    for part in (a.parts if a.kind is Kind.OVERLAP_F_B else (a,))
                ]
                for program in schedule.programs
            ]
        )


class _Walk:
    """All programs running, with the fused actions they run."""

    def __init__(self, schedule: Schedule) -> None:
        self.programs, self.deps = schedule.programs, Dependencies(schedule)
        self.heads = [0] * len(self.programs)
        self.results: list[list[Action]] = [[] for _ in self.programs]
        self.held: dict[int, int] = {}  # a rank that could go on alone, and what its pair misses
        self._holds = bytearray(self.deps.size)
        self._waiting: dict[int, list[int]] = {}

    def advance(self, rank: int) -> list[int]:
        """Run one action or pair of ``rank`` if possible; the ranks that can try next."""
        self.held.pop(rank, None)
        program, head = self.programs[rank], self.heads[rank]
        if head == len(program):
            return []
        first = program[head]
        missing = self._missing(first)
        if missing is not None:
            return self._wait(rank, missing)
        if head + 1 == len(program) or not self._may_overlap(first, program[head + 1]):
            return self._run(rank, first)
        pair = fuse(Kind.OVERLAP_F_B, first, program[head + 1])
        missing = self._missing(pair)
        if missing is None:
            return self._run(rank, pair, steps=2)
        self.held[rank] = missing
        return self._wait(rank, missing)

    def release(self, rank: int) -> list[int]:
        """Let a held rank run the first half of its pair alone."""
        self._waiting[self.held.pop(rank)].remove(rank)
        return self._run(rank, self.programs[rank][self.heads[rank]])

    def _may_overlap(self, first: Action, second: Action) -> bool:
        kinds = first.kind, second.kind
        forwards, backwards = kinds.count(Kind.F), sum(kind in _BACKWARD for kind in kinds)
        if (forwards, backwards) != (1, 1):
            return False
        return set(self.deps.gives(first)).isdisjoint(self.deps.needs(second))

    def _missing(self, action: Action) -> int | None:
        return next((fact for fact in self.deps.needs(action) if not self._holds[fact]), None)

    def _wait(self, rank: int, fact: int) -> list[int]:
        self._waiting.setdefault(fact, []).append(rank)
        return []

    def _run(self, rank: int, action: Action, *, steps: int = 1) -> list[int]:
        self.results[rank].append(action)
        self.heads[rank] += steps
        return [rank, *(other for fact in self.deps.gives(action) for other in self._give(fact))]

    def _give(self, fact: int) -> list[int]:
        self._holds[fact] = 1
        return self._waiting.pop(fact, [])
