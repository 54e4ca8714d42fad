"""What less memory costs: the best schedule for each of several limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from fullbore.errors import ParameterError
from fullbore.plan.candidate import Candidate
from fullbore.plan.search import Plan, Progress, plan

LIMITS = (0.4, 0.5, 0.6, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Multiples of P microbatches' activations that are tried unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Point:
    """The best for one limit.

    Attributes:
        memory: what a rank may hold, in bytes.
        best: the best schedule that was found for this limit, or for a smaller one; None if there
            is none.
        bound: what no schedule within the limit can beat; ``inf`` if there is none.
        plan: the planner's answer; None if it found nothing.
        reason: why there is none.
    """

    memory: float
    best: Candidate | None
    bound: float
    plan: Plan | None
    reason: str = ""

    @property
    def gap(self) -> float:
        """How far the best is above the bound, as a part of it; ``inf`` if there is none."""
        if self.best is None:
            return inf
        return max(0.0, self.best.length / self.bound - 1) if self.bound else 0.0


@dataclass(frozen=True, slots=True)
class Frontier:
    """Memory against time.

    Attributes:
        points: one for each limit, from the smallest on.
        families: every family's schedule, whatever memory it takes, the best first.
    """

    points: tuple[Point, ...]
    families: tuple[Candidate, ...]

    @property
    def work(self) -> float:
        """What the busiest rank has to do, where that is least."""
        found = [*self.families, *(point.best for point in self.points if point.best is not None)]
        return min((1 - one.makespan_bubble_rate) * one.makespan for one in found)

    def bubble(self, length: float) -> float:
        """The part of a step of some length, or of a bound, that is more than ``work``.

        That is the bubble rate where all placements share the work alike. Where they do not, it
        counts for all of them from the same work, so that a shorter step has the smaller bubble.
        """
        return 1 - self.work / length if length else 0.0


def frontier(
    limits: Sequence[float], *, on_progress: Progress = lambda part, best: None, **options: Any
) -> Frontier:
    """Plan for each of several memory limits.

    What is found for a limit also serves the larger ones, where nothing better is found: time never
    rises with memory.

    Args:
        limits: what a rank may hold, in bytes.
        on_progress: told how far all of it is.
        options: all others of ``plan``; ``deadline`` and ``effort`` are for each limit.

    Raises:
        ParameterError: an argument is out of range, or nothing fits the largest limit.
    """
    if not limits:
        raise ParameterError("frontier: give one memory limit or more")
    strange = [limit for limit in limits if not 0 <= limit < inf]
    if strange:
        raise ParameterError(f"frontier: memory limits are numbers of bytes; got {strange[0]!r}")
    options.pop("memory", None)
    everything = plan(**{**options, "memory": None, "effort": 0})
    points: list[Point] = []
    for number, memory in enumerate(sorted(set(limits))):

        def show(part: float, best: Candidate | None, begun: int = number) -> None:
            on_progress((begun + part) / len(set(limits)), best)

        before = points[-1].best if points else None
        point = _point(memory, before, on_progress=show, **options)
        points.append(point)
        if point.plan is not None and point.plan.stopped == "interrupt":
            break
    if points[-1].best is None:
        raise ParameterError(points[-1].reason)
    families = [found for found in everything.candidates if found.schedule.name != "plan"]
    return Frontier(tuple(points), tuple(families))


def _point(memory: float, before: Candidate | None, **options: Any) -> Point:
    try:
        found = plan(memory=memory, **options)
    except ParameterError as error:
        return Point(memory, None, inf, None, str(error))
    best = found.best
    if before is not None and before.length < best.length:
        best = before
    return Point(memory, best, found.bound, found)
