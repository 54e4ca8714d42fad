"""When each action can start at the earliest, given how long each one takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from types import MappingProxyType

from fullbore.errors import InvalidSchedule, ParameterError
from fullbore.ir import KINDS, Action, Dependencies, Group, Kind, Schedule, executable_order
from fullbore.sim.timeline import Slot, Timeline
from fullbore.verify import verify

UNIT_COSTS: Mapping[Kind, float] = MappingProxyType({Kind.F: 1, Kind.B: 2, Kind.I: 1, Kind.W: 1})
"""One unit a piece of work and stage; a full backward is an ``I`` and a ``W``."""


def unit_timeline(schedule: Schedule, *, costs: Mapping[Kind, float] = UNIT_COSTS) -> Timeline:
    """When each action runs if an action of a kind takes the same time everywhere.

    Args:
        schedule: any form; need not be complete.
        costs: the time that a kind of computation or sharding takes; none where a kind is missing.

    Raises:
        ParameterError: a cost is negative or not finite, or given to a kind that this engine runs
            in no time.
        InvalidSchedule: an action names a stage or microbatch out of range, or the order cannot
            run.
    """
    for kind, cost in costs.items():
        if not 0 <= cost < inf:
            raise ParameterError(f"costs: {kind.name} must be a time of 0 or more, got {cost}")
        if KINDS[kind].group is Group.COMMUNICATION or KINDS[kind].fused:
            raise ParameterError(f"costs: {kind.name} has no cost of its own here")
    return earliest_start(schedule, lambda action: costs.get(action.kind, 0))


def earliest_start(schedule: Schedule, duration: Callable[[Action], float]) -> Timeline:
    """When each action runs if it starts as soon as it can.

    A rank computes (and gathers, frees and reduces) one action after another, in order. An overlap
    runs its parts one after another, and each part's result is there when that part ends. Transfers
    take no time and keep nobody waiting but the computation that uses what they carry. Takes time
    linear in the number of actions.

    Args:
        schedule: any form; need not be complete.
        duration: how long a plain action takes; not asked about transfers.

    Raises:
        InvalidSchedule: an action names a stage or microbatch out of range, or the order cannot
            run.
    """
    plain = schedule.with_programs(
        [[leaf for action in program for leaf in action.leaves] for program in schedule.programs]
    )
    if not _in_range(plain):
        raise _refusal(schedule)
    deps = Dependencies(plain)
    order = executable_order(plain, deps)
    if order.blocked:
        raise _refusal(schedule)
    is_transfer = [KINDS[kind].group is Group.COMMUNICATION for kind in Kind]
    needs, gives = deps.needs, deps.gives
    ready: dict[int, float] = {}
    clocks: list[float] = [0] * plain.num_ranks
    slots: list[list[Slot]] = [[] for _ in plain.programs]
    for rank, step in order.steps:
        action = plain.programs[rank][step]
        transfer = is_transfer[action.kind]
        start = 0 if transfer else clocks[rank]
        for fact in needs(action):
            if ready[fact] > start:
                start = ready[fact]
        end = start
        if not transfer:
            end = clocks[rank] = start + duration(action)
        for fact in gives(action):
            ready[fact] = end
        slots[rank].append(Slot(action, start, end))
    return Timeline(
        tuple(
            _as_written(program, found)
            for program, found in zip(schedule.programs, slots, strict=True)
        )
    )


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
        for stage, kind, microbatch, _ in program
    )


def _refusal(schedule: Schedule) -> InvalidSchedule:
    findings = verify(schedule, model="buffered")
    return InvalidSchedule([f for f in findings if f.severity == "error"], schedule.name)


def _as_written(program: tuple[Action, ...], found: list[Slot]) -> tuple[Slot, ...]:
    """The slots of plain actions, those of a fused action's parts put together again."""
    rest = iter(found)
    slots = []
    for action in program:
        if not action.parts:
            slots.append(next(rest))
            continue
        parts = tuple(next(rest) for _ in action.parts)
        start, end = min(part.start for part in parts), max(part.end for part in parts)
        slots.append(Slot(action, start, end, parts))
    return tuple(slots)
