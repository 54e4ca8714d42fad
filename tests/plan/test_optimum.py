"""Small instances against the exact optimum: no bound is above it, and plans are at or near it."""

import pytest
from tests.plan.exact import optimum

from fullbore.ir import Placement
from fullbore.plan import bounds, make_instance, plan
from fullbore.sim import TableCosts

MARGIN = 0.03  # of the optimum, for two stages a rank; one stage a rank meets it
CASES = [  # placement, M, memory in multiples of P microbatches
    (Placement.vee(2), 4, 1),
    (Placement.vee(2), 4, 0.5),
    (Placement.loop(2, 2), 4, 1),
    (Placement.loop(2, 2), 4, 0.5),
    (Placement.vee(3), 4, 1),
    (Placement.vee(3), 4, 0.5),
    (Placement.loop(3, 2), 4, 1),
    (Placement.loop(3, 2), 4, 0.5),
    (Placement.linear(3), 6, 1),
    (Placement.linear(3), 6, 0.5),
    (Placement.linear(2), 4, 0.5),
]


def table(placement: Placement, *, is_even: bool) -> TableCosts:
    """Messages take time; stages are alike or all different."""
    count = placement.num_stages
    if is_even:
        return TableCosts(F=4, I=3, W=[2] * count, latency=1, activation_bytes=4, kept_bytes=2)
    return TableCosts(
        F=[3 + s % 3 for s in range(count)],
        I=[4 - s % 2 for s in range(count)],
        W=[2] * (count - 1) + [4],
        latency=1,
        activation_bytes=4,
        kept_bytes=2,
    )


@pytest.mark.parametrize("is_even", [True, False])
@pytest.mark.parametrize(("placement", "microbatches", "memory"), CASES, ids=str)
def test_bounds_and_plans_enclose_the_optimum(
    placement: Placement, microbatches: int, memory: float, is_even: bool
):
    model = table(placement, is_even=is_even)
    per_rank = placement.num_stages // placement.num_ranks
    limit = max(1, memory * placement.num_ranks) * 4 * per_rank
    found = plan(
        num_ranks=placement.num_ranks,
        num_microbatches=microbatches,
        costs=model,
        memory=limit,
        placements=(placement,),
        effort=2,
    )
    of = make_instance(placement, microbatches, costs=model, memory=limit)
    exact = optimum(of, seconds=60, most=found.best.makespan)
    assert exact.is_proved
    assert bounds(of).makespan <= exact.makespan + 1e-6
    margin = MARGIN if per_rank > 1 else 0
    assert exact.makespan <= found.best.makespan + 1e-6
    assert found.best.makespan <= exact.makespan * (1 + margin) + 1e-6
