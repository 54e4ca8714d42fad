"""Receive as late as possible."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fullbore.ir import Action, Form, Kind, Schedule, mate
from fullbore.passes.base import Pass
from fullbore.passes.batch import UnbatchCommunication

_SENDS = (Kind.SEND_F, Kind.SEND_B)
_RECEIVES = (Kind.RECV_F, Kind.RECV_B)
_USES = {Kind.F: Kind.RECV_F, Kind.B: Kind.RECV_B, Kind.I: Kind.RECV_B}


@dataclass(frozen=True)
class SinkReceives(Pass):
    """Moves every receive down to just before the compute that uses it, or as close as is safe.

    A late receive holds its buffer for less time and keeps the link free for other traffic. But a
    send that blocks until it is received also holds up its rank, and with every receive at its
    latest place ranks may wait for each other in a circle. So all programs are run together with
    such sends: a receive is made when its rank cannot go on without it; where ranks wait in a
    circle, one of them receives early, yet not earlier than in the input. The result thus runs
    even if every transfer blocks and one queue a rank pair serves both directions. Running the
    pass again changes nothing. Batched pairs are taken apart first.

    Refuses an input that cannot run under these conditions.
    """

    name: ClassVar[str] = "sink_receives"
    takes: ClassVar[tuple[Form, ...]] = (Form.LOWERED,)

    def apply(self, schedule: Schedule) -> Schedule:
        """Walk all programs together."""
        walk = _Walk(UnbatchCommunication()(schedule))
        ready = deque(range(schedule.num_ranks))
        while ready:
            while ready:
                ready += walk.advance(ready.popleft())
            circle = walk.circle()
            if circle:
                ready += walk.receive_early(circle)
                if not ready:
                    raise self.refusal(schedule, walk.explain(circle))
        return schedule.with_programs(walk.results)


class _Step(NamedTuple):
    action: Action
    sends: bool
    messages: list[Action]  # that it sends or uses, each named by its receive


class _Walk:
    """All programs running, with sends that block until they are received."""

    def __init__(self, schedule: Schedule) -> None:
        self._ranks = schedule.placement.ranks
        self.results: list[list[Action]] = [[] for _ in schedule.programs]
        self._steps: list[list[_Step]] = [[] for _ in schedule.programs]  # all but the receives
        self._floors: dict[Action, int] = {}  # the step that each receive must not pass upwards
        for steps, program in zip(self._steps, schedule.programs, strict=True):
            for action in program:
                if action.kind in _RECEIVES:
                    self._floors[action] = len(steps)
                elif action.kind in _SENDS:
                    steps.append(_Step(action, sends=True, messages=[mate(action)]))
                else:
                    steps.append(_Step(action, sends=False, messages=self._used(action)))
        self._heads = [0] * len(self._steps)
        self._waits_for: list[int | None] = [None] * len(self._steps)
        self._received: set[Action] = set()
        self._offered: dict[Action, int] = {}  # messages that wait to be received, and their ranks
        self._wanted: dict[Action, int] = {}  # messages that are waited for, and their ranks

    def _used(self, action: Action) -> list[Action]:
        """The messages that an action uses; their receives precede it."""
        uses = [(leaf, _USES[leaf.kind]) for leaf in action.leaves if leaf.kind in _USES]
        messages = [Action(leaf.stage, kind, leaf.microbatch) for leaf, kind in uses]
        return [message for message in messages if message in self._floors]

    def advance(self, rank: int) -> list[int]:
        """Run ``rank`` until it has to wait; the other ranks that this lets go on."""
        steps, results, head = self._steps[rank], self.results[rank], self._heads[rank]
        freed: list[int] = []
        while head < len(steps):
            action, sends, messages = steps[head]
            waiting, lacking = (
                (self._wanted, self._offered) if sends else (self._offered, self._wanted)
            )
            for message in messages:
                if message in waiting:
                    freed.append(waiting.pop(message))
                    self._receive(message)
                elif message not in self._received:
                    lacking[message] = rank
            missing = [message for message in messages if message not in self._received]
            if missing:
                other = missing[0] if sends else mate(missing[0])
                self._waits_for[rank] = self._ranks[other.stage]
                break
            results.append(action)
            head += 1
        else:
            self._waits_for[rank] = None
        self._heads[rank] = head
        return freed

    def _receive(self, message: Action) -> None:
        self._received.add(message)
        self.results[self._ranks[message.stage]].append(message)

    def circle(self) -> list[int]:
        """Ranks that wait for each other, the first for the second and so on; none if all ran.

        To be asked when no rank can go on: whoever waits then, waits in a circle or for one.
        """
        chain: list[int] = []
        rank = next((r for r, other in enumerate(self._waits_for) if other is not None), None)
        while rank is not None and rank not in chain:
            chain.append(rank)
            rank = self._waits_for[rank]
        return chain if rank is None else chain[chain.index(rank) :]

    def receive_early(self, circle: list[int]) -> list[int]:
        """Receive one message whose sender is in the circle; the sender, if there is one.

        The receive goes before the step where its rank waits, if the input allows that. There is
        always one: in a run of the input one rank of the circle goes on first. It is a sender, as
        what the others have not sent cannot be used; and its message was received before the step
        where the receiver now waits.
        """
        for rank in sorted(circle):
            _, sends, messages = self._steps[rank][self._heads[rank]]
            if not sends or messages[0] not in self._floors:
                continue
            message = messages[0]
            if self._floors[message] <= self._heads[self._ranks[message.stage]]:
                del self._offered[message]
                self._receive(message)
                return [rank]
        return []

    def explain(self, circle: list[int]) -> str:
        """Who waits for whom."""
        waits = "; ".join(
            f"rank {rank} at {self._steps[rank][self._heads[rank]].action} "
            f"waits for rank {self._waits_for[rank]}"
            for rank in circle
        )
        return f"sends that block until they are received leave it stuck: {waits}"
