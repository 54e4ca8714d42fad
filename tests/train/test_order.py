"""The best order of measured work."""

from dataclasses import replace

import pytest

import fullbore as fb
from fullbore.errors import ParameterError
from fullbore.sim import TableCosts, measure, simulate
from fullbore.train.order import best_order, with_sends
from fullbore.verify import check

pytestmark = pytest.mark.torch

TIMES = [1.1, 4.0, 1.0, 4.3]
COSTS = TableCosts(
    F=TIMES,
    I=[1.05 * time for time in TIMES],
    W=[0.7 * time for time in TIMES],
    B=[1.5 * time for time in TIMES],
    latency=0.03,
    message_bytes=[0, 0.062, 0.062, 0.062],
    activation_bytes=[1, 4.06, 1.06, 4.31],
)


@pytest.mark.parametrize("memory", [None, 13.3])
def test_what_is_true_of_a_schedule_decides(memory: float | None):
    schedule = fb.build("zbv", num_ranks=2, num_microbatches=4)
    found = best_order(schedule, COSTS, memory=memory, deadline=6)
    lengths = [candidate.makespan for candidate in found.candidates]
    assert lengths == sorted(lengths)
    assert {candidate.placement for candidate in found.candidates} == {schedule.placement}
    for candidate in found.candidates:
        check(candidate.schedule)
        timeline = simulate(candidate.schedule, COSTS)
        peaks = [peak.bytes for peak in measure(candidate.schedule, timeline, COSTS).peak]
        assert candidate.makespan == pytest.approx(timeline.makespan)
        assert memory is None or max(peaks) <= memory * (1 + 1e-9)
    families = [c.makespan for c in found.candidates if c.schedule.name != "plan"]
    # Uneven stages: the families' orders are for even ones.
    assert lengths[0] < 0.97 * min(families)


def test_what_cannot_fit_is_refused():
    schedule = fb.build("zbv", num_ranks=2, num_microbatches=4)
    with pytest.raises(ParameterError, match="needs"):
        best_order(schedule, COSTS, memory=3, deadline=1)


def test_without_cheaper_whole_backwards_one_search_is_enough():
    schedule = fb.build("1f1b", num_ranks=2, num_microbatches=4)
    costs = replace(COSTS, F=1, I=1, W=1, B=None, message_bytes=0, activation_bytes=1)
    found = best_order(schedule, costs, memory=None, deadline=2)
    assert found.best.makespan == pytest.approx(found.bound)


@pytest.mark.parametrize("name", ["zbv", "interleaved_zero_bubble", "gpipe", "v_min", "dualpipev"])
def test_posting_a_message_may_count_as_the_work_that_makes_it(name: str):
    schedule = fb.build(name, num_ranks=3, num_microbatches=5)
    count = schedule.num_stages
    costs = TableCosts(
        F=[3.0 + s for s in range(count)], I=4, W=2, send=[0.5 + s for s in range(count)], latency=1
    )
    found = with_sends(costs, schedule.placement)
    assert found.send == 0
    assert simulate(schedule, found).makespan == pytest.approx(simulate(schedule, costs).makespan)
