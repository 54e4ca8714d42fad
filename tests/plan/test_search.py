"""The planner: plans are valid, fit, never beat a bound, and are the same everywhere."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plan.papers import HELD, MIDDLE, UNIT, costs, instance

from fullbore.errors import ParameterError
from fullbore.ir import Action, Kind, Placement
from fullbore.passes import lower
from fullbore.plan import Candidate, Plan, bounds, plan
from fullbore.plan.anneal import Annealer
from fullbore.plan.loops import Evaluator
from fullbore.plan.one_by_one import one_by_one
from fullbore.plan.points import Point, Space
from fullbore.schedules.dispatch import NEVER
from fullbore.sim import Costs, TableCosts, measure, simulate
from fullbore.verify import verify

PLACEMENTS = [Placement.linear(3), Placement.loop(2, 3), Placement.vee(3), Placement((0, 1, 1, 2))]


def right(found: Plan, model: Costs) -> None:
    """Every candidate is what it says, by the verifier and the plain simulator."""
    assert found.candidates
    lengths = [candidate.length for candidate in found.candidates]
    assert lengths == sorted(lengths)
    for candidate in found.candidates:
        for schedule in (candidate.schedule, lower(candidate.schedule, shard=True)):
            assert not [f for f in verify(schedule) if f.severity == "error"]
        timeline = simulate(candidate.schedule, model)
        assert candidate.makespan == timeline.makespan
        assert candidate.span == timeline.span
        metrics = measure(candidate.schedule, timeline, model)
        assert candidate.peak == pytest.approx([peak.bytes for peak in metrics.peak])
        assert found.memory is None or max(candidate.peak) <= found.memory * (1 + 1e-9)
        assert candidate.gap >= -1e-9
        assert candidate.length >= found.bound * (1 - 1e-9)


@pytest.mark.parametrize("objective", ["makespan", "span"])
@pytest.mark.parametrize("memory", [None, 4 * HELD, 2.2 * HELD])
def test_plans_are_right(memory: float | None, objective):
    model = costs(MIDDLE)
    found = plan(
        num_ranks=4,
        num_microbatches=6,
        costs=model,
        memory=memory,
        stages_per_rank=(1, 2),
        objective=objective,
        effort=1,
    )
    right(found, model)
    assert (found.effort, found.stopped, found.objective) == (1, None, objective)


def test_a_plan_beats_every_family():
    model = costs(MIDDLE)
    found = plan(
        num_ranks=4,
        num_microbatches=8,
        costs=model,
        memory=4 * HELD,
        stages_per_rank=(2,),
        effort=2,
    )
    assert found.best.schedule.name == "plan"
    assert found.best.makespan_bubble_rate < 0.0765  # ZBV's, the best family


@pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda p: str(p.ranks))
@pytest.mark.parametrize("memory", [0.6, 1.0])
def test_the_loops_agree_with_the_simulator(placement: Placement, memory: float):
    model = costs(MIDDLE)
    least = max(len(placement.stages_of(r)) for r in range(placement.num_ranks))
    of = instance(placement, 5, max(memory, least / placement.num_ranks), model)
    space = Space(of, Random(1))
    for by_span in (False, True):
        evaluate = Evaluator(of, by_span=by_span, compiled=False)
        bases = [space.regular()]
        for _ in range(40):
            point = Point(bases[-1], space.paces(), space.rules())
            if _agrees(evaluate, point, model, by_span):
                bases.append(evaluate.starts(evaluate.order))
        assert len(bases) > 5


def _agrees(evaluate: Evaluator, point: Point, model: Costs, by_span: bool) -> bool:
    length = evaluate(point)
    if length == NEVER:
        return False
    order = evaluate.order
    timeline = simulate(evaluate.schedule(order), model)
    plain = timeline.span if by_span else timeline.makespan
    # A dispatched action may wait on purpose; the simulator never waits.
    assert plain <= length * (1 + 1e-9)
    assert evaluate.length(order) == pytest.approx(plain)
    starts = evaluate.starts(order)
    for slot in (slot for slots in timeline.ranks for slot in slots):
        stage, kind, k, _ = slot.action
        if kind is not Kind.W:
            row = stage + (kind is Kind.I) * evaluate.schedule(order).num_stages
            assert starts[row * 5 + k] == pytest.approx(slot.start)
    found, best = evaluate.swap(order, length=length, moves=40, tolerance=0.0, seed=5)
    after = simulate(evaluate.schedule(best), model)
    if found < length:
        assert (after.span if by_span else after.makespan) == pytest.approx(found)
    assert not [f for f in verify(evaluate.schedule(best)) if f.severity == "error"]
    return True


@given(st.sampled_from(PLACEMENTS), st.integers(1, 6), st.integers(0, 99))
def test_compiled_loops_find_the_same(placement: Placement, microbatches: int, seed: int):
    of = instance(placement, microbatches, 2, costs(MIDDLE))
    found = []
    for compiled in (False, True):
        annealer = Annealer(of, seed, target=0, compiled=compiled, budget=1)
        parts = [part for level in (1, 2) for part in annealer.level(level)]
        assert 0 < max(parts) <= 1
        found.append((annealer.length, annealer.order, annealer.evaluations))
    assert found[0] == found[1]


def small(**changes) -> Plan:
    arguments = {"num_ranks": 3, "num_microbatches": 5, "costs": costs(UNIT), "effort": 1}
    return plan(**{**arguments, "memory": 2 * HELD, "stages_per_rank": (2,), **changes})


def test_the_same_arguments_give_the_same_plan():
    assert small().candidates == small().candidates
    assert small(seed=1).seed == 1


def test_a_deadline_cuts_it_short():
    found = small(deadline=1e-9)
    assert (found.effort, found.stopped) == (0, "deadline")
    right(found, costs(UNIT))


def test_an_interrupt_keeps_the_best_so_far():
    def interrupt(part: float, best: Candidate | None) -> None:
        if part > 0.7:
            raise KeyboardInterrupt

    found = small(on_progress=interrupt)
    assert (found.effort, found.stopped) == (0, "interrupt")
    assert any(candidate.schedule.name == "plan" for candidate in found.candidates)


def test_progress_goes_from_0_to_1():
    told: list[float] = []
    small(on_progress=lambda part, best: told.append(part), effort=2, stages_per_rank=(1, 2))
    assert told == sorted(told)
    assert told[0] > 0
    assert told[-1] <= 1


def test_costs_by_stage_leave_placements_out():
    model = TableCosts(F=[3, 2, 2, 2, 2, 4], I=2, W=[1] * 6, activation_bytes=1)
    found = small(costs=model, memory=12, stages_per_rank=(1, 2))
    right(found, model)
    assert {candidate.placement.num_stages for candidate in found.candidates} == {6}
    assert found.left_out == (
        "linear, 1 a rank: costs: F has 6 numbers for 3 stages; give one a stage",
    )


def test_what_is_between_ranks_counts():
    model = TableCosts(
        F=2, I=2, W=1, latency=1, bandwidth=4, message_bytes=4, activation_bytes=4, static_bytes=3
    )
    found = small(costs=model, memory=6 + 28, effort=3)
    right(found, model)


def test_a_cheaper_full_backward_is_used():
    model = TableCosts(F=1, I=1, W=1, B=1.2, activation_bytes=1)
    best = small(costs=model, memory=12).best
    assert Kind.B in {action.kind for _, _, action in best.schedule.actions()}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_limit_that_no_float_hits_is_met(placement: Placement):
    """0.1 + 0.2 is above 0.3."""
    held = [0.0] * placement.num_stages
    for rank in range(placement.num_ranks):
        held[placement.stages_of(rank)[0]] = 0.2
    static = [size / 2 for size in held]
    model = TableCosts(F=2, I=2, W=1, activation_bytes=held, static_bytes=static)
    found = small(num_ranks=placement.num_ranks, costs=model, memory=0.3, placements=[placement])
    right(found, model)
    assert max(found.best.peak) > 0.3


def test_what_is_static_counts_where_nothing_else_does():
    model = TableCosts(F=1, I=1, W=1, message_bytes=1, static_bytes=7)
    found = small(num_ranks=1, costs=model, memory=8, placements=[Placement.linear(1)])
    assert {candidate.peak for candidate in found.candidates} == {(7,)}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_messages_on_their_way_leave_less_memory(placement: Placement):
    """Whatever has room for one microbatch at a time is planned, and more memory is no worse."""
    model = TableCosts(F=2, I=2, W=1, message_bytes=0.2, activation_bytes=4, static_bytes=3)
    alone = one_by_one(placement, 4)
    least = max(peak.bytes for peak in measure(alone, simulate(alone, model), model).peak)
    lengths = []
    for more in (0, 0.1, 0.5, 4, 8, 40):
        found = small(
            num_ranks=placement.num_ranks,
            num_microbatches=4,
            costs=model,
            memory=least + more,
            placements=[placement],
        )
        right(found, model)
        lengths.append(found.best.length)
    assert lengths[0] <= simulate(alone, model).makespan
    assert lengths == sorted(lengths, reverse=True)
    with pytest.raises(ParameterError, match=r"needs|no schedule that fits"):
        small(
            num_ranks=placement.num_ranks,
            num_microbatches=4,
            costs=model,
            memory=least - 0.1,
            placements=[placement],
        )


def test_the_bound_ends_the_search():
    found = plan(
        num_ranks=4,
        num_microbatches=8,
        costs=costs(MIDDLE),
        memory=4 * HELD,
        stages_per_rank=(1,),
        effort=4,
    )
    assert found.evaluations < 20
    assert found.best.gap == pytest.approx(0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"effort": -1}, "effort must be a whole number from 0 to 20; got -1"),
        ({"effort": 1.5}, "effort must be a whole number"),
        ({"deadline": 0}, "deadline must be more than 0 seconds; got 0"),
        ({"objective": "peak"}, "objective must be makespan or span; got 'peak'"),
        ({"shapes": ("ring",)}, "a placement is loop or vee; got 'ring'"),
        ({"seed": None}, "seed must be a whole number; got None"),
        ({"num_ranks": 0}, "ranks must be a whole number from 1 on; got 0"),
        ({"stages_per_rank": (1.5,)}, r"stages a rank must be a whole number from 1 on; got 1\.5"),
        ({"stages_per_rank": (10**9,)}, "use 10,000,000 stages at most"),
        ({"stages_per_rank": (3,), "shapes": ("vee",)}, "that leaves no placement"),
        ({"num_microbatches": 0}, "microbatches must be a whole number from 1 to"),
        ({"num_microbatches": float("nan")}, "whole number from 1 to .*; got nan"),
        ({"num_microbatches": 10**10}, "whole number from 1 to .* here; got 10000000000"),
        ({"memory": 1}, "no placement can be: loop, 2 a rank: memory: rank 0 needs 303104"),
    ],
)
def test_what_is_refused(changes: dict, message: str):
    with pytest.raises(ParameterError, match=message):
        small(**changes)


def test_a_step_of_one_rank_and_one_microbatch():
    found = plan(num_ranks=1, num_microbatches=1, costs=TableCosts(F=1, I=1, W=1), effort=1)
    assert found.best.makespan == 3 * found.best.stages_per_rank
    assert Action(0, Kind.F, 0) in found.schedule.programs[0]


def test_many_microbatches_are_planned_with_fewer():
    model = costs(MIDDLE)
    of = instance(Placement.loop(16, 2), 512, 1, model)
    found = plan(
        num_ranks=16,
        num_microbatches=512,
        costs=model,
        memory=16 * HELD,
        stages_per_rank=(2,),
        shapes=("loop",),
        effort=1,
    )
    assert found.best.length <= bounds(of).makespan * 1.005
