"""What a timeline amounts to, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from fullbore.ir import KINDS, Action, Group, Kind, Schedule
from fullbore.sim.causes import Causes
from fullbore.sim.costs import Costs
from fullbore.sim.memory import memory_over_time
from fullbore.sim.timeline import Slot, Timeline


class Idle(NamedTuple):
    """How long a rank does not compute: until its first backward starts (``warm_up``), after its
    last forward has ended (``cool_down``), and in between (``steady``)."""

    warm_up: float
    steady: float
    cool_down: float


class Peak(NamedTuple):
    """The most that a rank holds, and the action at which it first does: None if it is constant."""

    bytes: float
    action: Action | None


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a timeline amounts to. Times are in the unit of the costs, bytes in bytes.

    Attributes:
        makespan: from the first start to the last end.
        span: the largest time between one rank's first and last computation.
        makespan_bubble_rate, span_bubble_rate: the part of each in which the busiest rank does not
            compute.
        busy: how long each rank computes.
        idle: how long each rank does not, within the makespan.
        exposed: how long each rank's computation waits for messages whose content exists already.
        peak: the most memory that each rank holds.
        messages: how many messages there are between ranks, and their bytes.
    """

    makespan: float
    span: float
    makespan_bubble_rate: float
    span_bubble_rate: float
    busy: tuple[float, ...]
    idle: tuple[Idle, ...]
    exposed: tuple[float, ...]
    peak: tuple[Peak, ...]
    messages: int
    message_bytes: float


def measure(
    schedule: Schedule, timeline: Timeline, costs: Costs, *, causes: Causes | None = None
) -> Metrics:
    """The metrics of a timeline that :func:`simulate` gave for ``schedule`` and ``costs``. Its
    causes are found out unless they are given.

    Raises:
        ParameterError: the costs do not fit the schedule's stages.
    """
    table = costs.table(schedule.placement)
    static = [float(size) for size in schedule.placement.sum_by_rank(table.static_bytes)]
    levels = memory_over_time(schedule, timeline, costs)
    return Metrics(
        makespan=timeline.makespan,
        span=timeline.span,
        makespan_bubble_rate=timeline.makespan_bubble_rate,
        span_bubble_rate=timeline.span_bubble_rate,
        busy=timeline.busy,
        idle=_idle(timeline),
        exposed=_exposed(Causes(schedule, timeline) if causes is None else causes, schedule),
        peak=tuple(
            max(
                (Peak(level.bytes, level.action) for level in found),
                key=lambda peak: peak.bytes,
                default=Peak(static[rank], None),
            )
            for rank, found in enumerate(levels)
        ),
        messages=len(timeline.transfers),
        message_bytes=sum(transfer.size for transfer in timeline.transfers),
    )


def _idle(timeline: Timeline) -> tuple[Idle, ...]:
    slots = [slot for rank in timeline.ranks for slot in rank]
    begin = min((slot.start for slot in slots), default=0)
    end = max((slot.end for slot in slots), default=0)
    return tuple(_idle_of(work, begin, end) for work in timeline.work())


def _idle_of(work: list[Slot], begin: float, end: float) -> Idle:
    halves = [(leaf.kind is Kind.F, slot) for slot in work for leaf in slot.action.leaves]
    backward = min((slot.start for is_forward, slot in halves if not is_forward), default=end)
    forward = max((slot.end for is_forward, slot in halves if is_forward), default=begin)
    bounds = (begin, backward), (backward, max(forward, backward)), (max(forward, backward), end)
    gaps = list(pairwise([begin, *(time for s in work for time in (s.start, s.end)), end]))[::2]
    return Idle(
        *(
            sum(max(0, min(stop, last) - max(start, first)) for start, stop in gaps)
            for first, last in bounds
        )
    )


def _exposed(causes: Causes, schedule: Schedule) -> tuple[float, ...]:
    events, found = causes.events, [0.0] * schedule.num_ranks
    for number, event in enumerate(events):
        if KINDS[event.action.kind].group is not Group.COMPUTE:
            continue
        held = causes.held_by(number)
        if held is None or KINDS[events[held].action.kind].group is not Group.COMMUNICATION:
            continue
        free = 0 if event.after is None else events[event.after].end
        made = max(events[n].end for n in events[held].needs)
        found[event.rank] += max(0, event.start - max(free, made))
    return tuple(found)
