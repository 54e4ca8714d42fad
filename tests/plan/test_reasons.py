"""Why a schedule wins."""

import pytest

from fullbore.plan import plan
from fullbore.plan.reasons import LIMITS_BY, mean_idle, reasons
from fullbore.sim import UniformCosts

COSTS = UniformCosts(F=4, I=4, W=3, latency=0.2, activation_bytes=1)


def test_a_plan_is_held_against_the_best_family():
    found = plan(
        num_ranks=3,
        num_microbatches=5,
        costs=COSTS,
        memory=2.5,
        stages_per_rank=(2,),
        shapes=("vee",),
        effort=2,
    )
    why = reasons(found, COSTS)
    assert found.best.schedule.name == "plan"
    assert why.family is found.candidates[1]
    assert why.family_idle == mean_idle(why.family, COSTS)
    for idle, candidate in ((why.idle, found.best), (why.family_idle, why.family)):
        assert idle is not None
        assert sum(idle) == pytest.approx(candidate.makespan - 5 * 11)
    assert why.bound_by in LIMITS_BY


def test_a_family_that_wins_is_held_against_nothing():
    found = plan(num_ranks=2, num_microbatches=2, costs=COSTS, stages_per_rank=(1,), effort=0)
    why = reasons(found, COSTS)
    assert found.best.schedule.name != "plan"
    assert (why.family, why.family_idle) == (None, None)


def test_what_limits_is_named_for_either_objective():
    by = {}
    for objective in ("makespan", "span"):
        found = plan(
            num_ranks=4,
            num_microbatches=4,
            costs=COSTS,
            stages_per_rank=(1,),
            objective=objective,
            effort=0,
        )
        by[objective] = reasons(found, COSTS).bound_by
    assert by["span"] in ("work", "window", "area")
    assert by["makespan"] in LIMITS_BY
