"""Measured and predicted, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from fullbore.ir import KINDS, Group, Kind
from fullbore.sim.costs import Costs
from fullbore.sim.engine import simulate
from fullbore.sim.profile import Profile, Spent, spent


class ActionTimes(NamedTuple):
    """The times of one kind of work at one stage, in seconds.

    Attributes:
        stage, kind: of the work; an overlap that ran as one belongs to no stage, -1.
        samples: how often it was measured.
        predicted: what the costs say; None for an overlap.
        median: of what was measured, waiting left out.
        error: how far the samples are from the prediction, as a part of it: the median. None
            where nothing is predicted.
    """

    stage: int
    kind: Kind
    samples: int
    predicted: float | None
    median: float
    error: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """Measured and predicted, side by side. Times in seconds.

    Attributes:
        steps: how many steps were measured; the first is left out if there are more.
        measured: the median time of a step.
        predicted: the makespan that the costs give.
        error: how far the prediction is from a step, as a part of its time: the median.
        actions: by kind and stage.
        ranks: where each rank's time went, in the step of median length.
    """

    steps: int
    measured: float
    predicted: float
    error: float
    actions: tuple[ActionTimes, ...]
    ranks: tuple[Spent, ...]


def report(profile: Profile, costs: Costs | None = None, *, skip: int = 1) -> Report:
    """Compare what was measured with what costs predict.

    Args:
        profile: what was measured.
        costs: those of another run, say; by default those that the profile itself shows.
        skip: how many steps at the beginning to leave out, if there are more.

    Raises:
        ParameterError: the costs do not fit the schedule's stages.
    """
    costs = profile.costs(skip=skip) if costs is None else costs
    times = profile.step_times()[skip:] or profile.step_times()
    steps = profile.steps[skip:] or profile.steps
    predicted = simulate(profile.schedule, costs).makespan
    middle = sorted(range(len(times)), key=times.__getitem__)[len(times) // 2]
    return Report(
        steps=len(times),
        measured=median(times),
        predicted=predicted,
        error=median(abs(time - predicted) / time for time in times),
        actions=_actions(profile, costs, skip),
        ranks=spent(steps[middle]),
    )


def _actions(profile: Profile, costs: Costs, skip: int) -> tuple[ActionTimes, ...]:
    table = costs.table(profile.schedule.placement)
    busy = profile.busy(skip=skip).items()
    work = {(s, kind): times for (kind, s), times in busy if KINDS[kind].group is Group.COMPUTE}
    found = []
    for (stage, kind), times in sorted(work.items()):
        predicted = None if stage < 0 else getattr(table, kind.name)[stage]
        error = median(abs(t - predicted) / predicted for t in times) if predicted else None
        found.append(ActionTimes(stage, kind, len(times), predicted, median(times), error))
    return tuple(found)
