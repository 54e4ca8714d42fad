"""Weight gradients go where a rank would be idle: the greedy part of the zero-bubble schedules."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from fullbore.ir import Action, Kind, Placement, Schedule
from fullbore.schedules.costs import StageCosts

_MORE = 1 + 1e-9  # what rounding may add up to


class Filled(NamedTuple):
    """A schedule, and what it takes at the costs that it was made for. The best is the least."""

    span: float
    makespan: float
    schedule: Schedule


class _Rank:
    def __init__(self, room: float, reserve: float) -> None:
        self.program: list[Action] = []
        self.waiting: deque[tuple[int, int]] = deque()  # stage and microbatch of W to be placed
        self.begun = -1.0
        self.clock = self.idle = self.held = 0.0
        self.room, self.reserve = room * _MORE, reserve


class Filler:
    """Places F and I as it is told, each as early as can be after what its rank runs already.

    It places weight gradients by itself, the oldest first (section 3.1 of the zero-bubble paper):

    * one that is as short as the time a rank would wait goes there;
    * a longer one does too, if waiting would make this rank idle for longer than any has been;
    * before what does not fit the memory go as many as it takes;
    * the rest goes last.

    Args:
        placement: which rank holds which stage.
        num_microbatches: M.
        costs: what things cost, and what a rank may hold.
        own: the (stage, microbatch) of those weight gradients that it is told as well.
    """

    def __init__(
        self,
        placement: Placement,
        num_microbatches: int,
        costs: StageCosts,
        own: Collection[tuple[int, int]] = (),
    ) -> None:
        self._ranks = [
            _Rank(room, costs.reserve(placement.stages_of(rank)))
            for rank, room in enumerate(costs.capacity)
        ]
        self._placement, self._m, self._costs, self._own = placement, num_microbatches, costs, own
        self._last = placement.num_stages - 1
        self._most_idle = 0.0
        unknown: list[float | None] = [None] * num_microbatches
        self._ends = {
            kind: [unknown.copy() for _ in range(placement.num_stages)]
            for kind in (Kind.F, Kind.I, Kind.W)
        }

    def clock(self, rank: int) -> float:
        """When the rank has run all that is placed."""
        return self._ranks[rank].clock

    def arrival(self, action: Action) -> float | None:
        """When what the action needs is there; None if that is not placed yet."""
        stage, kind, microbatch, _ = action
        if kind is Kind.F and stage == 0:
            return 0.0
        if kind is Kind.W:
            return self._ends[Kind.I][stage][microbatch]
        if kind is Kind.I and stage == self._last:
            return self._ends[Kind.F][stage][microbatch]
        step = -1 if kind is Kind.F else 1
        end = self._ends[kind][stage + step][microbatch]
        hop = self._costs.down[stage - 1] if kind is Kind.F else self._costs.up[stage]
        return None if end is None else end + hop

    def has_room(self, action: Action) -> bool:
        """Whether the action fits the memory, if weight gradients go before it. What an I needs
        more than is held until then is kept free, so that an I fits wherever its F did."""
        rank = self._ranks[self._placement.ranks[action.stage]]
        freed = sum(self._costs.kept[stage] for stage, _ in rank.waiting)
        return rank.held - freed + self._needs(rank, action) <= rank.room

    def _needs(self, rank: _Rank, action: Action) -> float:
        if action.kind is Kind.W:
            return 0.0
        held = self._costs.held[action.stage]
        if action.kind is Kind.F:
            return held + rank.reserve
        return self._costs.full[action.stage] - held

    def place(self, action: Action) -> None:
        """Run the action next on its rank. What it needs is placed, and has room."""
        stage, kind, microbatch, _ = action
        rank = self._ranks[self._placement.ranks[stage]]
        ready = self.arrival(action)
        assert ready is not None
        while rank.waiting and ready > rank.clock * _MORE:
            gap = ready - rank.clock
            fits = self._costs.W[rank.waiting[0][0]] <= gap * _MORE
            if not fits and rank.idle + gap <= self._most_idle * _MORE:
                break
            self._weight(rank)
        while rank.waiting and rank.held + self._needs(rank, action) > rank.room:
            self._weight(rank)
        self._begin(rank, action, ready)
        if kind is Kind.I and (stage, microbatch) not in self._own:
            rank.waiting.append((stage, microbatch))

    def finish(self) -> Filled:
        """Place the weight gradients that are left."""
        for rank in self._ranks:
            while rank.waiting:
                self._weight(rank)
        ranks = self._ranks
        schedule = Schedule(tuple(tuple(r.program) for r in ranks), self._placement, self._m)
        span = max(rank.clock - rank.begun for rank in ranks)
        return Filled(span, max(rank.clock for rank in ranks), schedule)

    def _weight(self, rank: _Rank) -> None:
        stage, microbatch = rank.waiting.popleft()
        self._begin(rank, Action(stage, Kind.W, microbatch), rank.clock)

    def _begin(self, rank: _Rank, action: Action, ready: float) -> None:
        stage, kind, microbatch, _ = action
        costs = self._costs
        start = max(ready, rank.clock)
        if rank.begun < 0:
            rank.begun = rank.clock = start
        rank.idle += start - rank.clock
        self._most_idle = max(self._most_idle, rank.idle)
        if kind is Kind.F:
            time, size = costs.F[stage], costs.held[stage]
        elif kind is Kind.I:
            time, size = costs.I[stage], costs.kept[stage] - costs.held[stage]
        else:
            time, size = costs.W[stage], -costs.kept[stage]
        rank.clock = start + time
        rank.held += size
        rank.program.append(action)
        self._ends[kind][stage][microbatch] = rank.clock


def fill(
    orders: Sequence[Sequence[Action]],
    placement: Placement,
    num_microbatches: int,
    *,
    costs: StageCosts,
) -> Filled | None:
    """Complete each rank's order of F, I and perhaps some W with the weight gradients that it
    lacks. None if it does not fit the memory even so."""
    own = {(a.stage, a.microbatch) for order in orders for a in order if a.kind is Kind.W}
    filler = Filler(placement, num_microbatches, costs, own)
    coming = [iter(order) for order in orders]
    queue: list[tuple[float, int, Action]] = []  # by start, so that all ranks advance together
    blocked: dict[int, Action] = {}

    def announce(rank: int, action: Action | None) -> None:
        if action is None:
            return
        ready = filler.arrival(action)
        if ready is None:
            blocked[rank] = action
        else:
            heappush(queue, (max(ready, filler.clock(rank)), rank, action))

    for rank, order in enumerate(coming):
        announce(rank, next(order, None))
    while queue:
        _, rank, action = heappop(queue)
        if not filler.has_room(action):
            return None
        filler.place(action)
        announce(rank, next(coming[rank], None))
        after = action.stage + {Kind.F: 1, Kind.I: -1, Kind.W: 0}[action.kind]
        other = placement.ranks[after] if 0 <= after < placement.num_stages else rank
        if blocked.get(other) == action._replace(stage=after):
            announce(other, blocked.pop(other))
    return filler.finish()
