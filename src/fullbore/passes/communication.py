"""Spell out the messages between ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import ClassVar

from fullbore.ir import Action, Dependencies, Form, Kind, Schedule
from fullbore.passes.base import Pass, who_waits

Put = Callable[[Action], None]
Route = tuple[Put, int, Kind, Put, int, Kind]
"""Whose list a send goes to, its stage and kind, and the same of its receive."""


@dataclass(frozen=True)
class InsertCommunication(Pass):
    """Puts a send after every action whose result another rank needs, and the receive there.

    One walk runs all programs, a step a rank and round. When a result leaves its rank, the send
    goes onto the producer's list and, at the same moment, the receive onto the consumer's. Both
    orders of every channel thus come from one order in time, in which each send meets its receive:
    the result cannot deadlock even if both block and one queue serves both directions. Refuses an
    order that cannot run and says who waits for what.
    """

    name: ClassVar[str] = "insert_communication"
    takes: ClassVar[tuple[Form, ...]] = (Form.COMPUTE,)
    gives: ClassVar[Form | None] = Form.LOWERED

    def apply(self, schedule: Schedule) -> Schedule:
        """Walk all programs together."""
        deps = Dependencies(schedule)
        lists: list[list[Action]] = [[] for _ in schedule.programs]
        routes = _routes(schedule, lists)
        count = 0
        for rank, action in _rounds(schedule, deps):
            count += 1
            lists[rank].append(action)
            for stage, kind, microbatch, _ in action[3] or (action,):
                route = routes[kind][stage]
                if route is not None:
                    send, here, sends, receive, there, receives = route
                    send(Action(here, sends, microbatch))
                    receive(Action(there, receives, microbatch))
        if count < schedule.num_actions:
            raise self.refusal(schedule, who_waits(schedule))
        return schedule.with_programs(lists, form=Form.LOWERED)


def _routes(schedule: Schedule, lists: list[list[Action]]) -> list[list[Route | None]]:
    """By kind and stage, where the result of an action goes if it leaves its rank."""
    placement = schedule.placement
    nowhere: list[Route | None] = [None] * schedule.num_stages
    down, up = nowhere.copy(), nowhere.copy()
    for after in filter(placement.crosses, range(schedule.num_stages)):
        before = after - 1
        put, put_after = (lists[placement.ranks[stage]].append for stage in (before, after))
        down[before] = put, before, Kind.SEND_F, put_after, after, Kind.RECV_F
        up[after] = put_after, after, Kind.SEND_B, put, before, Kind.RECV_B
    table = {Kind.F: down, Kind.B: up, Kind.I: up}
    return [table.get(kind, nowhere) for kind in Kind]


def _rounds(schedule: Schedule, deps: Dependencies) -> Iterator[tuple[int, Action]]:
    """All actions as ``(rank, action)``, until none can run.

    Round by round, in each the ranks in ascending order, a rank's next action if its needs hold by
    then: a result serves higher ranks in the same round and lower ranks in the next.
    """
    programs, needs, gives = schedule.programs, deps.needs, deps.gives
    width, heads = len(programs), [0] * len(programs)
    holds = bytearray(deps.size)
    waiting: dict[int, list[int]] = {}
    # A turn is round * width + rank. In ascending order a list is a heap.
    turns = [rank for rank, program in enumerate(programs) if program]
    while turns:
        turn = turns[0]
        rank = turn % width
        action = programs[rank][heads[rank]]
        for fact in needs(action):
            if not holds[fact]:
                waiting.setdefault(fact, []).append(rank)
                heappop(turns)
                break
        else:
            yield rank, action
            heads[rank] += 1
            if heads[rank] < len(programs[rank]):
                heapreplace(turns, turn + width)
            else:
                heappop(turns)
            for fact in gives(action):
                holds[fact] = 1
                for other in waiting.pop(fact, ()):
                    heappush(turns, turn + (other - rank) % width)
