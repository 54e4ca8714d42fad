"""Due dates: bases, what is added to them, and dates of few microbatches for many."""

from random import Random

import pytest
from tests.plan.papers import HELD, MIDDLE, costs, instance

from fullbore.ir import Placement
from fullbore.plan import plan
from fullbore.plan.loops import Evaluator
from fullbore.plan.points import Point, Space, stretched
from fullbore.schedules import build
from fullbore.schedules.dispatch import NEVER
from fullbore.schedules.dispatcher import Rules, order_of
from fullbore.sim import simulate

VEE = Placement.vee(4)


def test_a_step_counts_for_all_that_comes_after_it():
    point = Point(None, (1.0, 0.0, 2.0), Rules(period=1.0))
    assert point.shift() == [0.0, 1.0, 3.0, 1.0]  # F of two stages, I of two stages


def test_the_regular_base_is_one_microbatch_alone_in_every_period():
    of = instance(VEE, 3, 1, costs((8.0, 6.0, 4.0, 1.0)))
    base = Space(of).regular()
    assert base[0::3][:5] == [0, 5, 10, 15, 19]
    assert [base[1] - base[0], base[-1] - base[-2]] == pytest.approx([18, 18])


@pytest.mark.parametrize("microbatches", [12, 13, 24, 27])
def test_stretched_dates_of_a_regular_base_are_those_of_more_microbatches(microbatches: int):
    few = 12 + microbatches % 4
    dates = Space(instance(VEE, few, 1, costs(MIDDLE))).regular()
    more = stretched(dates, rows=16, microbatches=microbatches, size=4)
    assert more == pytest.approx(Space(instance(VEE, microbatches, 1, costs(MIDDLE))).regular())


@pytest.mark.parametrize("name", ["zbv_zero_bubble", "dualpipev", "v_min"])
def test_a_familys_starts_are_those_of_the_simulator(name: str):
    model = costs(MIDDLE)
    of = instance(VEE, 9, 1, model)
    evaluate = Evaluator(of, by_span=False, compiled=False)
    schedule = build(name, num_ranks=4, num_microbatches=9)
    order = order_of(schedule)
    fits = name != "dualpipev"  # which holds one microbatch more
    timeline = simulate(evaluate.schedule(order), model)
    assert evaluate.length(order) == (pytest.approx(timeline.makespan) if fits else NEVER)
    starts = evaluate.starts(order)
    assert starts[0] == 0
    assert max(starts) < timeline.makespan
    # From its own starts the dispatcher finds something at least about as good.
    found = [evaluate(Point(starts, (0.0,) * 15, Space(of, Random(n)).rules())) for n in range(30)]
    assert min(found) <= timeline.makespan * (1.02 if fits else 1.2)


def test_very_many_microbatches_are_planned_with_fewer():
    model = costs(MIDDLE)
    found = plan(
        num_ranks=12,
        num_microbatches=150,
        costs=model,
        memory=12 * HELD,
        stages_per_rank=(2,),
        shapes=("loop",),
        effort=2,
    )
    assert found.best.gap <= 0.005
    assert max(found.best.peak) <= 12 * HELD * (1 + 1e-9)
