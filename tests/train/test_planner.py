"""Planning in the middle of a run."""

from dataclasses import replace

import pytest

import fullbore as fb
from fullbore.errors import ParameterError
from fullbore.ir import Action, Kind, Schedule
from fullbore.plan import Memory, Plan
from fullbore.sim import Profile, Sample, TableCosts, simulate
from fullbore.train.footprint import Footprint
from fullbore.train.planner import Planner, Replan, costs_of, counterpart, least_memory
from fullbore.train.settings import Planning, Recipe, Settings
from fullbore.verify import check

pytestmark = pytest.mark.torch

TIMES = TableCosts(F=[1, 3, 1, 3], I=[1, 3, 2, 3], W=[1, 2, 1, 2], B=[1.5, 4, 2.5, 4])
HELD = {s: Footprint(10 * size, 9 * size, 7) for s, size in enumerate((1, 3, 1, 3))}


def run(schedule: Schedule, costs: TableCosts = TIMES) -> Profile:
    """What steps of a schedule look like if things take what they should."""
    ranks = simulate(schedule, costs).ranks
    step = [[Sample(slot.action, slot.start, slot.start, slot.end) for slot in r] for r in ranks]
    return Profile(schedule, (step, step))


def planner(name: str, **options: object) -> tuple[Planner, Schedule]:
    schedule = fb.build(name, num_ranks=2, num_microbatches=6)
    planning = Planning(after=3, deadline=5.0, **options)  # type: ignore[arg-type]
    return Planner(Settings(Recipe(), schedule, 20, planning=planning), planning, 4), schedule


def kinds(schedule: Schedule) -> set[tuple[int, Kind]]:
    return {(action.stage, action.kind) for _, _, action in schedule.actions()}


@pytest.mark.parametrize("name", ["interleaved_1f1b", "v_min", "gis"])
def test_what_a_schedule_leaves_open_is_measured_too(name: str):
    plans, schedule = planner(name)
    assert [step for step in range(20) if plans.due(step)] == [7]
    other = plans.go_on(run(schedule), HELD, step=7)
    assert isinstance(other, Schedule)
    check(other)
    needed = {(stage, kind) for stage in range(4) for kind in (Kind.F, Kind.B, Kind.I, Kind.W)}
    assert kinds(schedule) | kinds(other) == needed
    assert [step for step in range(20) if plans.due(step)] == [10]
    costs = costs_of([run(schedule), run(other)], HELD).table(schedule.placement)
    wanted = TIMES.table(schedule.placement)
    for name in "FIWB":
        assert getattr(costs, name) == pytest.approx(getattr(wanted, name))
    assert list(costs.activation_bytes) == [10, 30, 10, 30]
    assert list(costs.static_bytes) == [7] * 4
    assert isinstance(plans.go_on(run(other), HELD, step=10), Replan)


def test_nothing_else_is_measured_where_a_schedule_has_it_all():
    schedule = fb.build("interleaved_zero_bubble", num_ranks=2, num_microbatches=6)
    stages = {stage for stage, kind in kinds(schedule) if kind is Kind.B}
    assert (counterpart(schedule) is None) == (stages == set(range(4)))
    lowered = fb.lower(schedule)
    assert counterpart(lowered) is None


def test_the_plan_keeps_within_the_memory_and_is_no_worse_than_the_families():
    plans, schedule = planner("v_min", memory=Memory(1.0, relative=True))
    other = plans.go_on(run(schedule), HELD, step=7)
    assert isinstance(other, Schedule)
    found = plans.go_on(run(other), HELD, step=10)
    assert isinstance(found, Replan)
    assert found.plan.memory == 2 * 40 + 14
    assert max(found.plan.best.peak) <= 94
    assert found.measured == found.predicted_before == simulate(schedule, TIMES).makespan
    assert found.predicted < found.predicted_before
    assert found.family is not None
    assert found.predicted_family is not None
    assert found.predicted <= found.predicted_family
    assert found.after.placement == schedule.placement
    check(found.after)


def test_a_schedule_that_cannot_be_beaten_stays():
    schedule = fb.build("gpipe", num_ranks=2, num_microbatches=6)
    planning = Planning(after=3)
    plans = Planner(Settings(Recipe(), schedule, 20, planning=planning), planning, 0)
    even = TableCosts(F=1, I=9, W=0, B=1)
    held = {stage: Footprint(1, 1, 1) for stage in range(2)}

    other = plans.go_on(run(schedule, even), held, step=3)
    assert isinstance(other, Schedule)
    found = plans.go_on(run(other, even), held, step=6)
    assert isinstance(found, Replan)
    assert found.after is schedule
    assert found.fits


def test_too_little_memory_says_what_is_needed():
    plans, schedule = planner("v_min", memory=Memory(50, relative=False))
    other = plans.go_on(run(schedule), HELD, step=7)
    assert isinstance(other, Schedule)
    with pytest.raises(ParameterError, match="is 50 bytes here; a rank needs 54 at least"):
        plans.go_on(run(other), HELD, step=10)


def test_least_memory_is_that_of_one_microbatch_at_a_time():
    schedule = fb.build("zbv", num_ranks=2, num_microbatches=3)
    costs = replace(TIMES, activation_bytes=[1, 2, 4, 8], static_bytes=100, message_bytes=0)
    assert least_memory(schedule, costs) == 200 + 1 + 8
    assert Action(3, Kind.F, 0) in {action for _, _, action in schedule.actions()}


def test_whoever_wants_the_run_to_end_need_not_wait_for_the_plan(monkeypatch: pytest.MonkeyPatch):
    plans, schedule = planner("v_min")
    other = plans.go_on(run(schedule), HELD, step=7)
    assert isinstance(other, Schedule)
    found = plans.go_on(run(other), HELD, step=10, stopped=lambda: True)
    assert isinstance(found, Replan)
    assert found.plan.stopped == "interrupt"
    assert found.plan.effort == 0

    def interrupted(*args: object, **options: object) -> Plan:
        return replace(found.plan, stopped="interrupt")

    # The planner swallows a Ctrl-C, which is meant for the run.
    monkeypatch.setattr("fullbore.train.planner.best_order", interrupted)
    plans, schedule = planner("v_min")
    plans.go_on(run(schedule), HELD, step=7)
    with pytest.raises(KeyboardInterrupt):
        plans.go_on(run(other), HELD, step=10)
