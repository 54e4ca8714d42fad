"""Why everything starts when it does: what each piece of work of a timeline waited for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fullbore.ir import KINDS, Action, Dependencies, Form, Group, Kind, Schedule
from fullbore.sim.timeline import Timeline


class Event(NamedTuple):
    """A piece of work, or a message, and what must be over before it starts.

    Attributes:
        action: of a plain kind, or an overlap that is one block; a ``SEND_F`` or ``SEND_B`` for a
            message.
        rank: who does it; of a message, who sends it.
        start, end: from when to when. A message ends when it has arrived.
        needs: the events, by number, whose results it uses.
        after: the event before it on the same stream or link, if any.
    """

    action: Action
    rank: int
    start: float
    end: float
    needs: tuple[int, ...]
    after: int | None


class Causes:
    """The events of a timeline, each with what it waits for.

    Args:
        schedule: what was simulated.
        timeline: what came of it.
    """

    def __init__(self, schedule: Schedule, timeline: Timeline) -> None:
        self._deps = Dependencies(schedule.with_programs(schedule.programs, form=Form.LOWERED))
        self._givers: dict[int, int] = {}
        self.events: tuple[Event, ...] = ()
        work = list(_work(timeline))
        for number, (_, action, _, _) in enumerate(work):
            for fact in self._deps.gives(action):
                self._givers[fact] = number
        messages = [(t.edge, t.action, t.start, t.end) for t in timeline.transfers]
        for number, (_, action, _, _) in enumerate(messages, len(work)):
            for sent in self._deps.gives(action):
                self._givers[sent] = number
            for arrived in self._deps.gives(_received(action)):
                self._givers[arrived] = number
        last: dict[object, int] = {}
        events: list[Event] = []
        for number, (stream, action, start, end) in enumerate([*work, *messages]):
            needs = self._needs(action)
            events.append(Event(action, stream[0], start, end, needs, last.get(stream)))
            last[stream] = number
        self.events = tuple(events)

    def critical_path(self) -> tuple[Action, ...]:
        """A chain of actions and messages from the start to the last end, each of which starts the
        moment the one before lets it: making any of them faster is the only way to be done sooner,
        unless there is a second such chain. Of several, the one through fewer ranks' waits."""
        return tuple(self.events[number].action for number in self.critical_events())

    def critical_events(self) -> tuple[int, ...]:
        """The critical path as events, by number."""
        events = self.events
        number = max(range(len(events)), key=lambda n: (events[n].end, -n), default=None)
        path: list[int] = []
        while number is not None:
            path.append(number)
            number = self.held_by(number)
        return tuple(reversed(path))

    def held_by(self, number: int) -> int | None:
        """What an event started right after: the last of what it needs, or what came before it on
        its stream. None for one that waited for nothing."""
        event = self.events[number]
        # A message on a link may leave before the one ahead of it has arrived. Needs come first, so
        # that such a one is not taken for a reason.
        candidates = event.needs if event.after is None else (*event.needs, event.after)
        return max(candidates, key=lambda n: min(self.events[n].end, event.start), default=None)

    def _needs(self, action: Action) -> tuple[int, ...]:
        found = (self._givers.get(fact) for fact in self._deps.needs(action))
        return tuple(dict.fromkeys(number for number in found if number is not None))


Stream = tuple[int, object]
"""Of a rank: its compute stream, its sharding stream, or its link to another rank."""


def _work(timeline: Timeline) -> Iterable[tuple[Stream, Action, float, float]]:
    for rank, slots in enumerate(timeline.ranks):
        for slot in slots:
            for piece in slot.pieces:
                group = KINDS[piece.action.kind].group
                if group is not Group.COMMUNICATION:
                    yield (rank, group), piece.action, piece.start, piece.end


def _received(action: Action) -> Action:
    stage, kind, microbatch, _ = action
    if kind is Kind.SEND_F:
        return Action(stage + 1, Kind.RECV_F, microbatch)
    return Action(stage - 1, Kind.RECV_B, microbatch)
