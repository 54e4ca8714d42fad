"""The best order of measured work, its stages staying where they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf
from typing import Any

from fullbore.ir import Placement, Schedule
from fullbore.passes import MergeBackward
from fullbore.plan import Candidate, Plan, Progress, plan
from fullbore.plan.candidate import judge
from fullbore.sim import TableCosts

EFFORT = 6
"""More than a deadline of some seconds allows, unless the schedule is small."""


def best_order(
    schedule: Schedule,
    costs: TableCosts,
    *,
    memory: float | None,
    deadline: float,
    on_progress: Progress = lambda part, best: None,
) -> Plan:
    """Plan on the schedule's placement.

    Measured, a whole backward takes less time than its two halves. The planner takes every one for
    whole, and may think more than is true of an order that splits many. So it plans once more as if
    nothing were gained by whole ones, and what is true decides between the two.

    Args:
        schedule: says where the stages are, and how many microbatches there are.
        costs: of the stages.
        memory: what a rank may hold, in bytes; None: any amount.
        deadline: seconds to plan for.
        on_progress: told how far each of the two searches is.

    Raises:
        ParameterError: nothing fits the memory.
    """
    task: dict[str, Any] = {
        "num_ranks": schedule.num_ranks,
        "num_microbatches": schedule.num_microbatches,
        "memory": memory,
        "placements": [schedule.placement],
        "effort": EFFORT,
        "deadline": deadline / 2,
        "on_progress": on_progress,
    }
    found = plan(costs=costs, **task)
    if costs.B is None or found.stopped == "interrupt":
        return found
    apart = plan(costs=replace(costs, B=None), **task)
    others = (apart.schedule, MergeBackward().apply(apart.schedule))
    better = _better(found.best, others, costs, memory=memory)
    return replace(
        found,
        candidates=(*better, *found.candidates),
        evaluations=found.evaluations + apart.evaluations,
        seconds=found.seconds + apart.seconds,
        stopped=apart.stopped if apart.stopped == "interrupt" else found.stopped,
    )


def _better(
    best: Candidate, schedules: Iterable[Schedule], costs: TableCosts, *, memory: float | None
) -> list[Candidate]:
    """Those of the schedules that fit and are shorter, the shortest first."""
    limit = inf if memory is None else memory * (1 + 1e-9)
    anything = (inf,) * best.placement.num_ranks
    found = []
    for schedule in schedules:
        candidate, _ = judge(schedule, anything, costs=costs, bound=best.bound, by_span=False)
        if candidate.length < best.length * (1 - 1e-9) and max(candidate.peak) <= limit:
            found.append(candidate)
    return sorted(found, key=lambda candidate: candidate.length)


def with_sends(costs: TableCosts, placement: Placement) -> TableCosts:
    """The same costs, with the time of posting a message in that of the work that makes it: no
    schedule takes longer or shorter, and the planner need not leave it to the simulator."""
    table = costs.table(placement)
    stages = range(placement.num_stages)
    down = [t if placement.crosses(s + 1) else 0 for s, t in enumerate(table.send[:-1])] + [0]
    up = [t if placement.crosses(s) else 0 for s, t in enumerate(table.send)]
    return replace(
        costs,
        F=[table.F[s] + down[s] for s in stages],
        I=[table.I[s] + up[s] for s in stages],
        B=[table.B[s] + up[s] for s in stages],
        send=0,
    )
