"""When each action runs: one pass that gives every action its earliest start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from fullbore.errors import InvalidSchedule, ParameterError
from fullbore.ir import KINDS, Action, Dependencies, Form, Group, Kind, Schedule
from fullbore.sim.costs import Costs, Edge, Table, TableCosts
from fullbore.sim.timeline import Slot, Timeline, Transfer
from fullbore.verify import verify

UNIT_COSTS: Mapping[Kind, float] = MappingProxyType({Kind.F: 1, Kind.B: 2, Kind.I: 1, Kind.W: 1})
"""One unit a piece of work and stage; a full backward is an ``I`` and a ``W``."""

_TIMED = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE_GRAD)


def simulate(schedule: Schedule, costs: Costs) -> Timeline:
    """When each action runs if it starts as soon as it can.

    Resources and rules are those of ``docs/design/simulator.md``. Takes time linear in the number
    of actions, and gives the same timeline every time.

    Args:
        schedule: any form; need not be complete. In a COMPUTE schedule, messages leave in the
            order in which the work that makes them is listed.
        costs: how long things take.

    Raises:
        ParameterError: the costs do not fit the schedule's stages.
        InvalidSchedule: an action names a stage or microbatch out of range, or the order cannot
            run.
    """
    return _Pass(schedule, costs.table(schedule.placement)).run()


def unit_timeline(schedule: Schedule, *, costs: Mapping[Kind, float] = UNIT_COSTS) -> Timeline:
    """When each action runs if an action of a kind takes the same time everywhere, and messages
    none.

    Args:
        schedule: any form; need not be complete.
        costs: the time of a kind of computation or sharding; none where a kind is missing.

    Raises:
        ParameterError: a cost is negative or not finite, or given to a kind that has none.
        InvalidSchedule: as of :func:`simulate`.
    """
    for kind in costs:
        if kind not in _TIMED:
            raise ParameterError(f"costs: {kind.name} has no cost of its own here")
    f, b, i, w, unshard, reshard, reduce_grad = (costs.get(kind, 0) for kind in _TIMED)
    table = TableCosts(
        F=f, B=b, I=i, W=w, unshard=unshard, reshard=reshard, reduce_grad=reduce_grad
    )
    return simulate(schedule, table)


class _Rank:
    """Where one rank stands."""

    __slots__ = ("clock", "head", "issued", "sharding", "slots", "work")

    def __init__(self, work: list[Action]) -> None:
        self.work, self.head = work, 0
        self.clock: float = 0  # the compute stream is free from here on
        self.issued: float = 0  # start of the latest computation
        self.sharding: float = 0  # the sharding stream is free from here on
        self.slots: list[Slot] = []


class _Pass:
    """The one pass. Programs are walked rank by rank, each as far as what it needs is known."""

    def __init__(self, schedule: Schedule, costs: Table) -> None:
        self._schedule, self._costs = schedule, costs
        self._lowered = schedule.form is Form.LOWERED
        plain = schedule.with_programs(
            [self._unrolled(program) for program in schedule.programs], form=Form.LOWERED
        )
        if not _in_range(plain):
            raise _refusal(schedule)
        self._deps = Dependencies(plain)
        # When each fact becomes true. No list: a schedule may claim any number of microbatches.
        self._ready: dict[int, float] = {}
        self._waiting: dict[int, list[int]] = {}
        self._woken: list[int] = []
        self._ranks = [_Rank(list(program)) for program in plain.programs]
        self._placed = placed = schedule.placement.ranks
        pairs = {pair for here in pairwise(placed) for pair in (here, here[::-1])}
        self._links = {pair: costs.link(pair) for pair in pairs}
        self._free: dict[Edge, float] = {}
        self._unsharded: dict[int, float] = {}
        self._transfers: list[Transfer] = []
        self._durations = _durations(costs)
        self._crosses = [schedule.placement.crosses(s) for s in range(schedule.num_stages)] + [
            False
        ]
        self._handlers = [self._handler(kind) for kind in Kind]

    def _unrolled(self, program: tuple[Action, ...]) -> list[Action]:
        """The program with fused actions taken apart, but for overlaps that are one block."""
        return [
            part
            for action in program
            for part in ((action,) if self._is_block(action) else action.leaves)
        ]

    def _is_block(self, action: Action) -> bool:
        return action.kind is Kind.OVERLAP_F_B and self._block(action) is not None

    def _block(self, action: Action) -> float | None:
        stages = {part.kind is Kind.F: part.stage for part in action.parts}
        return self._costs.block(stages.get(True, -1), stages.get(False, -1))

    def run(self) -> Timeline:
        """All slots and transfers.

        Raises:
            InvalidSchedule: the order cannot run.
        """
        active = list(range(len(self._ranks)))
        while active:
            self._woken = []
            for number in active:
                self._advance(number)
            active = self._woken
        if any(rank.head < len(rank.work) for rank in self._ranks):
            raise _refusal(self._schedule)
        return Timeline(
            tuple(
                _as_written(program, rank.slots)
                for program, rank in zip(self._schedule.programs, self._ranks, strict=True)
            ),
            tuple(self._transfers),
        )

    def _handler(self, kind: Kind) -> Callable[[_Rank, Action, float], None]:
        info = KINDS[kind]
        if info.group is Group.SHARDING:
            return self._shard
        if info.group is Group.COMPUTE:
            return self._compute
        return self._send if kind in (Kind.SEND_F, Kind.SEND_B) else self._receive

    def _advance(self, number: int) -> None:
        """Run a rank as far as what it needs is known."""
        rank, ready, needs = self._ranks[number], self._ready, self._deps.needs
        work, handlers, head = rank.work, self._handlers, rank.head
        while head < len(work):
            action = work[head]
            at: float = 0
            for fact in needs(action):
                time = ready.get(fact)
                if time is None:
                    self._waiting.setdefault(fact, []).append(number)
                    rank.head = head
                    return
                if time > at:
                    at = time
            handlers[action.kind](rank, action, at)
            head += 1
        rank.head = head

    def _hold(self, action: Action, time: float) -> None:
        """From ``time`` on, what the action gives is there."""
        ready, waiting = self._ready, self._waiting
        for fact in self._deps.gives(action):
            ready[fact] = time
            if fact in waiting:
                self._woken += waiting.pop(fact)

    def _compute(self, rank: _Rank, action: Action, at: float) -> None:
        start = max(at, rank.clock)
        if self._unsharded:
            start = max([start, *(self._unsharded.get(leaf.stage, 0) for leaf in action.leaves)])
        block = self._block(action) if action.parts else None
        end = start + (self._durations[action.kind][action.stage] if block is None else block)
        rank.issued, rank.clock = start, end
        rank.slots.append(
            Slot(action, start, end, tuple(Slot(p, start, end) for p in action.parts))
        )
        self._hold(action, end)
        if not self._lowered:
            for leaf in action.leaves:
                self._leave(rank, leaf, end)

    def _leave(self, rank: _Rank, action: Action, at: float) -> None:
        """In a schedule without messages, send what another rank waits for."""
        stage, kind, microbatch, _ = action
        if kind is Kind.F and self._crosses[stage + 1]:
            sent, received = Kind.SEND_F, Action(stage + 1, Kind.RECV_F, microbatch)
        elif kind in (Kind.B, Kind.I) and self._crosses[stage]:
            sent, received = Kind.SEND_B, Action(stage - 1, Kind.RECV_B, microbatch)
        else:
            return
        self._hold(received, self._transfer(rank, Action(stage, sent, microbatch), at)[1])

    def _send(self, rank: _Rank, action: Action, at: float) -> None:
        start, end = self._transfer(rank, action, at)
        rank.slots.append(Slot(action, start, end))
        self._hold(action, end)

    def _receive(self, rank: _Rank, action: Action, at: float) -> None:
        rank.slots.append(Slot(action, at, at))
        self._hold(action, at)

    def _transfer(self, rank: _Rank, action: Action, at: float) -> tuple[float, float]:
        """When a message starts, its posting included, and when it arrives."""
        stage, kind, _, _ = action
        other = stage + (1 if kind is Kind.SEND_F else -1)
        edge = self._placed[stage], self._placed[other]
        costs = self._costs
        start = at
        if posting := costs.send[stage]:
            start = max(at, rank.clock)
            rank.clock = at = start + posting
        latency, per_byte = self._links[edge]
        size = costs.message_bytes[max(stage, other)]
        departure = max(at, self._free.get(edge, 0))
        self._free[edge] = departure + size * per_byte
        arrival = self._free[edge] + latency
        self._transfers.append(Transfer(action, edge, departure, arrival, size))
        return (start if posting else departure), arrival

    def _shard(self, rank: _Rank, action: Action, at: float) -> None:
        stage, kind, _, _ = action
        issued = {Kind.UNSHARD: rank.issued, Kind.RESHARD: rank.clock}.get(kind, at)
        start = max(rank.sharding, issued)
        rank.sharding = end = start + self._durations[kind][stage]
        if kind is Kind.UNSHARD:
            self._unsharded[stage] = end
        elif kind is Kind.RESHARD:
            self._unsharded.pop(stage, None)
        rank.slots.append(Slot(action, start, end))


def _durations(costs: Table) -> list[Sequence[float]]:
    """The time of each kind, by stage. Recomputation is part of the backward."""
    again = [f if s in costs.recompute else 0 for s, f in enumerate(costs.F)]
    rows: dict[Kind, Sequence[float]] = {
        Kind.F: costs.F,
        Kind.B: [b + f for b, f in zip(costs.B, again, strict=True)],
        Kind.I: [i + f for i, f in zip(costs.I, again, strict=True)],
        Kind.W: costs.W,
        Kind.UNSHARD: costs.unshard,
        Kind.RESHARD: costs.reshard,
        Kind.REDUCE_GRAD: costs.reduce_grad,
    }
    return [rows.get(kind, ()) for kind in Kind]


def _in_range(plain: Schedule) -> bool:
    """Whether every action names a stage and a microbatch that exist, as the codes of the
    dependency rule require."""
    num_stages, num_microbatches = plain.num_stages, plain.num_microbatches
    microbatches = [
        range(num_microbatches) if info.has_microbatch else range(-1, -1 if info.fused else 0)
        for info in map(KINDS.__getitem__, Kind)
    ]
    return all(
        0 <= stage < num_stages and microbatch in microbatches[kind]
        for program in plain.programs
        for action in program
        for stage, kind, microbatch, _ in action.leaves
    )


def _refusal(schedule: Schedule) -> InvalidSchedule:
    findings = verify(schedule, model="buffered")
    return InvalidSchedule([f for f in findings if f.severity == "error"], schedule.name)


def _as_written(program: tuple[Action, ...], found: list[Slot]) -> tuple[Slot, ...]:
    """The slots of plain actions, those of a fused action's parts put together again."""
    rest = iter(found)
    slots = []
    for action in program:
        slot = next(rest)
        if slot.action is not action:  # the first of its parts
            parts = (slot, *(next(rest) for _ in action.parts[1:]))
            start, end = min(part.start for part in parts), max(part.end for part in parts)
            slot = Slot(action, start, end, parts)
        slots.append(slot)
    return tuple(slots)
