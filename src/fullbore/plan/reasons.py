"""Why a schedule wins: where it idles beside another one, and what keeps any from being shorter."""

from __future__ import annotations

from dataclasses import dataclass

from fullbore.plan.bounds import bounds
from fullbore.plan.candidate import Candidate
from fullbore.plan.instance import make_instance
from fullbore.plan.search import Plan
from fullbore.sim import Costs, Idle, measure, simulate

LIMITS_BY = {
    "work": "the busiest rank's work",
    "window": "what memory lets a rank do before its first backward and after its last forward",
    "area": "how long activations must be held in the memory that there is",
    "chain": "the longest path through the stages and the memory",
    "machine": "the busiest rank's work, as the stages before and after it let it come",
}
"""What each argument of ``bounds`` says, in words."""


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why the best schedule wins. Idle times are means over the ranks.

    Attributes:
        idle: of the best: until the first backward, in between, and after the last forward.
        family: the best family on any placement, if it is not the best itself.
        family_idle: its idle times.
        bound_by: the argument that gives the bound of the best's placement.
    """

    idle: Idle
    family: Candidate | None
    family_idle: Idle | None
    bound_by: str


def reasons(found: Plan, costs: Costs) -> Reasons:
    """Why the best of a plan is that.

    Args:
        found: what ``plan`` gave.
        costs: those that it was given.
    """
    best = found.best
    families = (c for c in found.candidates if c.schedule.name != "plan" and c is not best)
    family = None if best.schedule.name != "plan" else next(families, None)
    instance = make_instance(
        best.placement, best.schedule.num_microbatches, costs=costs, memory=found.memory
    )
    limits = bounds(instance)
    by = limits.span_by if found.objective == "span" else limits.makespan_by
    return Reasons(
        idle=mean_idle(best, costs),
        family=family,
        family_idle=None if family is None else mean_idle(family, costs),
        bound_by=max(by, key=lambda name: by[name]),
    )


def mean_idle(candidate: Candidate, costs: Costs) -> Idle:
    """How long a rank idles, on average, in each part of the step."""
    schedule = candidate.schedule
    ranks = measure(schedule, simulate(schedule, costs), costs).idle
    return Idle(*(sum(times) / len(ranks) for times in zip(*ranks, strict=True)))
