"""Plans on placements that are given one by one."""

import pytest

from fullbore.errors import ParameterError
from fullbore.ir import Placement
from fullbore.plan import plan
from fullbore.sim import TableCosts, UniformCosts

COSTS = UniformCosts(F=4, I=4, W=3, activation_bytes=1)


def test_any_placement_can_be_planned_on():
    placement = Placement((0, 1, 2, 1))
    found = plan(
        num_ranks=3, num_microbatches=5, costs=COSTS, memory=2, placements=[placement], effort=1
    )
    assert {candidate.placement for candidate in found.candidates} == {placement}
    assert max(found.best.peak) <= 2
    assert found.best.makespan >= found.bound


def test_a_placement_for_other_ranks_is_refused():
    with pytest.raises(ParameterError, match="a placement is for 2 ranks, not 3"):
        plan(num_ranks=3, num_microbatches=5, costs=COSTS, placements=[Placement.vee(2)])


@pytest.mark.parametrize("memory", [11.7, 13.3, 21.3])
def test_a_search_that_overran_the_memory_begins_anew(memory: float):
    # What is on its way between ranks counts as well, which an order only shows at the end.
    times = [1.1, 4, 1, 4.3]
    costs = TableCosts(
        F=times,
        I=[1.05 * time for time in times],
        W=[0.6 * time for time in times],
        B=[1.6 * time for time in times],
        latency=0.03,
        message_bytes=[0, 0.062, 0.062, 0.062],
        activation_bytes=[1, 4.06, 1.06, 4.31],
    )
    found = plan(
        num_ranks=2,
        num_microbatches=4,
        costs=costs,
        memory=memory,
        placements=[Placement.vee(2)],
        effort=4,
    )
    assert found.best.schedule.name == "plan"
    assert found.best.gap < 0.03
    assert max(found.best.peak) <= memory * (1 + 1e-9)
