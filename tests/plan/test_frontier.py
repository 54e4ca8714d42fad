"""What less memory costs."""

from typing import Any

import pytest

from fullbore.errors import ParameterError
from fullbore.plan import frontier
from fullbore.sim import UniformCosts, simulate

COSTS = UniformCosts(F=4, I=4, W=3, latency=0.2, activation_bytes=1, kept_bytes=0.5)
SIZE: dict[str, Any] = {"num_ranks": 3, "num_microbatches": 6, "costs": COSTS, "effort": 1}


def test_time_never_rises_with_memory():
    found = frontier([3, 1.5, 0.2, 6, 3], **SIZE)
    assert [point.memory for point in found.points] == [0.2, 1.5, 3, 6]
    nothing, *rest = found.points
    assert (nothing.best, nothing.plan) == (None, None)
    assert nothing.reason.startswith("plan: no placement can be")
    lengths, bounds = [], []
    for point in rest:
        assert point.best is not None
        assert max(point.best.peak) <= point.memory * (1 + 1e-9)
        assert point.best.length >= point.bound * (1 - 1e-9)
        assert point.gap == pytest.approx(point.best.length / point.bound - 1, abs=1e-9)
        lengths.append(point.best.length)
        bounds.append(point.bound)
    assert found.work == pytest.approx(6 * 11)
    assert found.bubble(132) == pytest.approx(0.5)
    assert lengths == sorted(lengths, reverse=True)
    assert bounds == sorted(bounds, reverse=True)


def test_families_have_their_place_whatever_they_hold():
    found = frontier([3], **SIZE)
    names = {family.schedule.name for family in found.families}
    assert {"gpipe", "1f1b", "zbv_zero_bubble", "v_min"} <= names
    assert max(max(family.peak) for family in found.families) == 6
    for family in found.families[:3]:
        assert family.makespan == simulate(family.schedule, COSTS).makespan


def test_progress_goes_from_limit_to_limit():
    seen: list[float] = []
    frontier([2, 3], on_progress=lambda part, best: seen.append(part), **SIZE)
    assert seen == sorted(seen)
    assert 0 < seen[0] < 0.5 < seen[-1] <= 1


def test_nonsense():
    with pytest.raises(ParameterError, match="one memory limit or more"):
        frontier([], **SIZE)
    with pytest.raises(ParameterError, match="no placement can be"):
        frontier([0.1], **SIZE)
    for limit in (float("nan"), float("inf"), -1):
        with pytest.raises(ParameterError, match="memory limits are numbers of bytes; got"):
            frontier([3, limit], **SIZE)


def test_work_that_takes_no_time_has_no_bubble():
    free = UniformCosts(F=0, I=0, W=0, activation_bytes=1)
    found = frontier([3], **{**SIZE, "costs": free})
    (point,) = found.points
    assert (point.gap, found.bubble(point.bound)) == (0, 0)
