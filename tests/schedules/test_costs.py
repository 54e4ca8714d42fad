"""What families that take costs see of them."""

from math import inf
from typing import Any

import pytest

from fullbore.errors import ParameterError
from fullbore.ir import Placement
from fullbore.schedules import build
from fullbore.schedules.costs import StageCosts, limited, stage_costs, unit_costs
from fullbore.sim import TableCosts, UniformCosts

VEE = Placement.vee(2)


def test_numbers_by_stage():
    costs = TableCosts(
        F=[1, 2, 3, 4],
        I=5,
        W=6,
        latency={(0, 1): 1, (1, 0): 2},
        bandwidth=10,
        message_bytes=[0, 20, 30, 40],
        activation_bytes=[9, 8, 7, 6],
        kept_bytes=[5, 9, 5, 5],
        static_bytes=3,
    )
    found = stage_costs(VEE, costs, 30)
    assert (found.most((0, 3)), found.reserve((0, 3)), found.reserve((1, 2))) == (15, 0, 1)
    assert found == StageCosts(
        F=(1, 2, 3, 4),
        I=(5, 5, 5, 5),
        W=(6, 6, 6, 6),
        down=(3, 0.0, 6, 0.0),  # stages 1 and 2 are on one rank
        up=(4, 0.0, 5, 0.0),
        held=(9, 8, 7, 6),
        kept=(5, 9, 5, 5),
        full=(9, 9, 7, 6),
        capacity=(24, 24),
    )


def test_a_forward_that_runs_again_counts_with_its_gradient():
    costs = TableCosts(
        F=2, I=5, W=6, recompute=[1], message_bytes=3, activation_bytes=9, kept_bytes=8
    )
    found = stage_costs(Placement.linear(2), costs)
    assert (found.I, found.held, found.kept) == ((5, 7), (9, 3), (8, 8))
    assert (found.full, found.reserve((0, 1))) == ((9, 9), 6)


def test_without_bytes_microbatches_are_counted():
    found = stage_costs(VEE, UniformCosts(F=2, I=2, W=2))
    assert (found.F, found.held, found.kept) == ((1,) * 4, (1,) * 4, (1,) * 4)
    assert stage_costs(VEE, None) == unit_costs(VEE)
    assert stage_costs(VEE, UniformCosts(F=2, I=2, W=2), 3) == found
    assert limited(VEE, found, 3).capacity == (6, 6)


def test_the_limit_is_that_of_1f1b_unless_given():
    unit = unit_costs(VEE)
    assert unit.capacity == (inf, inf)
    assert limited(VEE, unit, None).capacity == (4, 4)
    within = stage_costs(VEE, TableCosts(F=1, I=1, W=1, activation_bytes=1), 7)
    assert limited(VEE, within, None).capacity == (7, 7)
    assert limited(VEE, within, 3).capacity == (6, 6)
    assert limited(VEE, within, 4).capacity == (7, 7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": 3}, "memory: bytes are known from costs that say what activations take"),
        (
            {"memory": 3, "costs": UniformCosts(F=1, I=1, W=1)},
            "memory: bytes are known from costs that say what activations take",
        ),
        (
            {
                "memory": 3,
                "costs": UniformCosts(F=1, I=1, W=1, activation_bytes=2, static_bytes=2),
            },
            "memory: rank 0 needs 4 at least, for one microbatch of each of its stages; got 3",
        ),
        ({"costs": TableCosts(F=[1, 2, 3], I=1, W=1)}, "costs: F has 3 numbers for 2 stages"),
    ],
)
def test_costs_that_do_not_do(arguments: dict[str, Any], message: str):
    with pytest.raises(ParameterError) as caught:
        build("zb", num_ranks=2, num_microbatches=4, **arguments)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", ["1f1b", "zbv", "v_half", "interleaved_1f1b:round_size=4"])
def test_most_families_do_not_depend_on_costs(name: str):
    with pytest.raises(ParameterError, match="does not depend on costs or memory; leave them out"):
        build(name, num_ranks=2, num_microbatches=4, costs=UniformCosts(F=1, I=1, W=1))
