"""Plans in the middle of a run: measures some steps, finds the best order, says what it is worth.

Stages stay where they are, so that parameters and optimizer state do: only the order of their work
is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fullbore.errors import ParameterError
from fullbore.ir import Action, Form, Kind, Program, Schedule, fuse
from fullbore.passes import SplitBackward
from fullbore.plan import Plan
from fullbore.plan.one_by_one import one_by_one
from fullbore.sim import Profile, TableCosts, measure, report, simulate
from fullbore.train.footprint import Footprint
from fullbore.train.order import best_order, with_sends
from fullbore.train.settings import Planning, Settings


@dataclass(frozen=True, slots=True)
class Replan:
    """What came of planning. Times are of a pipeline step, in seconds.

    Attributes:
        step: after which step.
        before, after: the schedules; they are the same if nothing better was found.
        measured: the median step under the schedule before.
        predicted_before, predicted: what the measured costs give for both.
        fits: whether the schedule before keeps within the memory.
        family, predicted_family: the best family that does, and its time; None if there is none.
        costs: what was measured, by stage.
        plan: the planner's answer.
    """

    step: int
    before: Schedule
    after: Schedule
    measured: float
    predicted_before: float
    predicted: float
    fits: bool
    family: str | None
    predicted_family: float | None
    costs: TableCosts
    plan: Plan


class Planner:
    """Says when to measure and what to run next.

    Args:
        settings: of the run.
        planning: its ``--plan``.
        first_step: how many steps were done before.
    """

    def __init__(self, settings: Settings, planning: Planning, first_step: int) -> None:
        self._named, self._planning = settings.schedule, planning
        other = counterpart(self._named)
        self._ahead = [] if other is None else [other]
        self._profiles: list[Profile] = []
        self._next = first_step + planning.after

    def due(self, step: int) -> bool:
        """Whether to measure after ``step``."""
        return step == self._next

    def go_on(
        self,
        profile: Profile,
        footprints: Mapping[int, Footprint],
        *,
        step: int,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Replan | Schedule:
        """What to run now: something else to measure, or what was planned.

        Args:
            profile: of the steps since this was asked last.
            footprints: what each stage holds.
            step: how many steps are done.
            stopped: whether somebody wants the run to end.

        Raises:
            ParameterError: nothing fits the memory.
            KeyboardInterrupt: somebody interrupted the planner.
        """
        self._profiles.append(profile)
        if self._ahead:
            self._next += self._planning.after
            return self._ahead.pop()
        costs = costs_of(self._profiles, footprints)
        return self._plan(with_sends(costs, self._named.placement), step, stopped)

    def _plan(self, costs: TableCosts, step: int, stopped: Callable[[], bool]) -> Replan:
        named, memory = self._named, self._planning.memory
        limit = None if memory is None else memory.bytes(costs, [named.placement])
        least = least_memory(named, costs)
        if limit is not None and limit < least:
            raise ParameterError(
                f"--memory is {limit:,.0f} bytes here; a rank needs {least:,.0f} at least, for one "
                "microbatch at a time. Allow more, or use smaller microbatches"
            )

        def interrupt(part: float, best: object) -> None:
            if stopped():
                raise KeyboardInterrupt

        found = best_order(
            named,
            costs,
            memory=limit,
            deadline=self._planning.deadline,
            on_progress=interrupt,
        )
        if found.stopped == "interrupt" and not stopped():
            raise KeyboardInterrupt  # the planner ends early for it, and so should the run
        timeline = simulate(named, costs)
        peak = max(peak.bytes for peak in measure(named, timeline, costs).peak)
        fits = limit is None or peak <= limit * (1 + 1e-9)
        best = found.best
        stays = fits and timeline.makespan <= best.makespan * (1 + 1e-6)
        family = next((c for c in found.candidates if c.schedule.name != "plan"), None)
        return Replan(
            step=step,
            before=named,
            after=named if stays else best.schedule,
            measured=report(self._profiles[0]).measured,
            predicted_before=timeline.makespan,
            predicted=timeline.makespan if stays else best.makespan,
            fits=fits,
            family=None if family is None else family.schedule.name,
            predicted_family=None if family is None else family.makespan,
            costs=costs,
            plan=found,
        )


def check_steps(settings: Settings, planning: Planning, first_step: int) -> None:
    """Make sure that a plan has steps to be measured before it, and to be used after it.

    Raises:
        ParameterError: there are too few.
    """
    rounds = 1 if counterpart(settings.schedule) is None else 2
    needed = first_step + rounds * planning.after + 1
    if settings.steps < needed:
        raise ParameterError(
            f"--plan measures {rounds * planning.after} steps first, so --steps must be {needed} "
            f"at least; it is {settings.steps}. Train longer, or measure less with --plan-after"
        )


def counterpart(schedule: Schedule) -> Schedule | None:
    """The same order with its backwards split if some stage has no split one, or joined if some
    stage has no whole one: what tells their times. None if there is nothing to learn."""
    if schedule.form is not Form.COMPUTE:
        return None
    kinds = {(leaf.stage, leaf.kind) for _, _, a in schedule.actions() for leaf in a.leaves}
    stages = range(schedule.num_stages)
    if any((stage, Kind.W) not in kinds for stage in stages):
        other = SplitBackward().apply(schedule)
    elif any((stage, Kind.B) not in kinds for stage in stages):
        other = schedule.with_programs([_joined(program) for program in schedule.programs])
    else:
        return None
    return replace(other, name=f"{schedule.name}, to measure")


def _joined(program: Program) -> list[Action]:
    """Each ``I`` as a ``B``, without any ``W``."""
    joined = []
    for action in program:
        if action.kind is Kind.W:
            continue
        leaves = [p._replace(kind=Kind.B) if p.kind is Kind.I else p for p in action.leaves]
        joined.append(fuse(action.kind, *leaves) if action.parts else leaves[0])
    return joined


def costs_of(profiles: Sequence[Profile], footprints: Mapping[int, Footprint]) -> TableCosts:
    """The costs of each stage: times as the first profile has them; halves of backwards, and whole
    ones, from one that has them for all stages."""
    shown = [profile.costs() for profile in profiles]
    costs = shown[0]
    for profile, found in zip(profiles, shown, strict=True):
        kinds = {a.kind for _, _, a in profile.schedule.actions()}
        if Kind.W in kinds:
            costs = replace(costs, I=found.I, W=found.W)
        if Kind.B in kinds and found.B is not None:
            costs = replace(costs, B=found.B)
    held = [footprints[stage] for stage in range(profiles[0].schedule.num_stages)]
    return replace(
        costs,
        activation_bytes=[one.activations for one in held],
        kept_bytes=[one.kept for one in held],
        static_bytes=[one.static for one in held],
    )


def least_memory(schedule: Schedule, costs: TableCosts) -> float:
    """What a rank must be able to hold: one microbatch at a time goes down all stages and back."""
    alone = one_by_one(schedule.placement, schedule.num_microbatches)
    peaks = measure(alone, simulate(alone, costs), costs).peak
    return max(peak.bytes for peak in peaks)
