"""Plans on placements that are given one by one."""

import pytest

from fullbore.errors import ParameterError
from fullbore.ir import Placement
from fullbore.plan import plan
from fullbore.sim import UniformCosts

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
