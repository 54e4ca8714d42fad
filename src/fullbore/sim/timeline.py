"""What a simulation finds: the time of every action, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fullbore.ir import KINDS, Action, Group


class Slot(NamedTuple):
    """An action and the time it takes, from ``start`` up to ``end``.

    ``parts`` holds a fused action's parts, each with its own time, in the order they are written.
    """

    action: Action
    start: float
    end: float
    parts: tuple[Slot, ...] = ()

    @property
    def leaves(self) -> tuple[Slot, ...]:
        """The parts of a fused action; the slot itself otherwise."""
        return self.parts or (self,)

    @property
    def pieces(self) -> tuple[Slot, ...]:
        """What runs one after another: the parts of a fused action, or the slot itself, also if it
        is an overlap that runs as one block."""
        whole = all((part.start, part.end) == (self.start, self.end) for part in self.parts)
        return (self,) if whole else self.parts


class Transfer(NamedTuple):
    """A message between two ranks.

    Attributes:
        action: the ``SEND_F`` or ``SEND_B``, also where the schedule doesn't spell it out.
        edge: (sending rank, receiving rank).
        start, end: when it leaves, and when it has arrived.
        size: in bytes.
    """

    action: Action
    edge: tuple[int, int]
    start: float
    end: float
    size: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """When every action runs. Times are integers if all costs are.

    Attributes:
        ranks: one slot an action, rank by rank, in the order of the rank's program. Transfers need
            not be in the order of time: they go on beside the computation.
        transfers: all messages between ranks, whether the schedule spells them out or not.
    """

    ranks: tuple[tuple[Slot, ...], ...]
    transfers: tuple[Transfer, ...] = ()

    def work(self) -> Iterator[list[Slot]]:
        """Each rank's computation, in order; the parts of an overlap one by one, unless it runs as
        one block."""
        for slots in self.ranks:
            yield [
                piece
                for slot in slots
                for piece in slot.pieces
                if KINDS[piece.action.kind].group is Group.COMPUTE
            ]

    @property
    def makespan(self) -> float:
        """From the first start to the last end over all ranks and actions: what a step with a
        synchronous optimizer pays."""
        slots = [slot for rank in self.ranks for slot in rank]
        if not slots:
            return 0
        return max(slot.end for slot in slots) - min(slot.start for slot in slots)

    @property
    def span(self) -> float:
        """The largest time between one rank's first and last computation: the metric of the
        zero-bubble papers, whose ranks do not wait for each other between steps."""
        return max((work[-1].end - work[0].start for work in self.work() if work), default=0)

    @property
    def busy(self) -> tuple[float, ...]:
        """How long each rank computes."""
        return tuple(sum(slot.end - slot.start for slot in work) for work in self.work())

    @property
    def idle(self) -> tuple[float, ...]:
        """How long each rank does not compute within the makespan."""
        makespan = self.makespan
        return tuple(makespan - busy for busy in self.busy)

    @property
    def bubble(self) -> float:
        """How much longer than the busiest rank's work the makespan is."""
        return self.makespan - max(self.busy, default=0)

    @property
    def makespan_bubble_rate(self) -> float:
        """The part of the makespan that is bubble, from 0 to 1."""
        return self.bubble / self.makespan if self.makespan else 0.0

    @property
    def span_bubble_rate(self) -> float:
        """The part of the span that the busiest rank does not work, from 0 to 1."""
        return 1 - max(self.busy) / self.span if self.span else 0.0
