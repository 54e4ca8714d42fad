"""Schedules side by side, each judged by the verifier and the simulator."""

from __future__ import annotations

from dataclasses import dataclass

from fullbore.ir import Kind, Placement, Schedule
from fullbore.sim import Costs, Table, memory_over_time, simulate
from fullbore.verify import check

_EXACT = 1e-9


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule that fits the memory, and how good it is.

    Attributes:
        schedule: what runs; its ``name`` is the family's, or ``"plan"``.
        makespan, span: in the unit of the costs, as the simulator finds them.
        makespan_bubble_rate, span_bubble_rate: the part of each in which the busiest rank does not
            compute.
        peak: the most that each rank holds, in bytes.
        length: the makespan or the span, whichever counts.
        bound: what no schedule on the same placement with the same memory can beat.
    """

    schedule: Schedule
    makespan: float
    span: float
    makespan_bubble_rate: float
    span_bubble_rate: float
    peak: tuple[float, ...]
    length: float
    bound: float

    @property
    def placement(self) -> Placement:
        """Which rank holds which stage."""
        return self.schedule.placement

    @property
    def stages_per_rank(self) -> int:
        """V, of the rank that has most."""
        placement = self.placement
        return max(len(placement.stages_of(rank)) for rank in range(placement.num_ranks))

    @property
    def gap(self) -> float:
        """How far the length is above the bound, as a part of the bound."""
        return self.length / self.bound - 1 if self.bound else 0.0


def excess(peak: float, static: float, capacity: float) -> float:
    """By how many bytes a rank is over its capacity, which does not include what is static."""
    return max(0.0, peak - static - capacity * (1 + _EXACT) - _EXACT)


def most_held(schedule: Schedule, table: Table) -> tuple[float, ...]:
    """The most that each rank holds, but for what is on its way between stages and for the parts of
    overlaps running at once: then the order alone decides, and this is what the simulator finds."""
    peaks = []
    for rank, program in enumerate(schedule.programs):
        held = sum(table.static_bytes[s] for s in schedule.placement.stages_of(rank))
        most = held
        for action in program:
            for stage, kind, _, _ in action.leaves:
                full, kept = table.activation_bytes[stage], table.kept_bytes[stage]
                light = table.message_bytes[stage] if stage in table.recompute else full
                if kind is Kind.W:
                    held -= kept
                    continue
                held += light if kind is Kind.F else full - light
                most = max(most, held)
                held -= {Kind.F: 0.0, Kind.I: full - kept}.get(kind, full)
                most = max(most, held)
        peaks.append(most)
    return tuple(peaks)


def judge(
    schedule: Schedule,
    capacity: tuple[float, ...],
    *,
    costs: Costs,
    bound: float,
    by_span: bool,
) -> tuple[Candidate, tuple[float, ...]]:
    """A schedule as a candidate, and by how many bytes each rank is over its capacity.

    Raises:
        InvalidSchedule: the verifier finds an error.
    """
    check(schedule)
    table = costs.table(schedule.placement)
    timeline = simulate(schedule, costs)
    makespan, span, busiest = timeline.makespan, timeline.span, max(timeline.busy)
    peak, own = most_held(schedule, table), schedule.placement.sum_by_rank(table.static_bytes)
    if any(table.message_bytes) or any(action.parts for _, _, action in schedule.actions()):
        levels = memory_over_time(schedule, timeline, costs)
        peak = tuple(
            max((level.bytes for level in found), default=static)
            for static, found in zip(own, levels, strict=True)
        )
    over = tuple(map(excess, peak, own, capacity))
    candidate = Candidate(
        schedule=schedule,
        makespan=makespan,
        span=span,
        makespan_bubble_rate=1 - busiest / makespan if makespan else 0.0,
        span_bubble_rate=1 - busiest / span if span else 0.0,
        peak=peak,
        length=span if by_span else makespan,
        bound=bound,
    )
    return candidate, over
