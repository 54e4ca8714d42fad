"""Partition and schedule together."""

from random import Random
from typing import Any

import pytest

from fullbore.errors import ParameterError
from fullbore.plan import Layer, LayerCosts, joint
from fullbore.sim import simulate

BLOCK = Layer(F=4, I=4, W=3, held=5, kept=3, static=2)
MODEL = (Layer(F=1, I=0, W=2, static=9), *[BLOCK] * 9, Layer(F=6, I=6, W=6, held=4, static=9))
COSTS = LayerCosts(layers=MODEL, latency=0.5)
SIZE: dict[str, Any] = {
    "num_ranks": 2,
    "num_microbatches": 3,
    "stages_per_rank": (1, 2),
    "effort": 1,
}


@pytest.mark.parametrize("memory", [None, 75.0])
def test_the_best_of_several_partitions(memory: float | None):
    found = joint(COSTS, memory=memory, splits=3, **SIZE)
    best = found.plan.best
    assert [n for stage in found.partition.stages for n in stage] == list(range(len(MODEL)))
    assert simulate(best.schedule, found.costs).makespan == pytest.approx(best.makespan)
    assert memory is None or max(best.peak) <= memory * (1 + 1e-9)
    assert found.splits > 3
    alone = joint(COSTS, memory=memory, splits=1, **SIZE)
    assert alone.splits == 1
    assert best.makespan <= alone.plan.best.makespan * 1.02
    if memory is None:
        assert found.even is not None
        assert best.makespan <= found.even.makespan


def test_an_even_split_that_is_best_is_told_as_such():
    found = joint(LayerCosts(layers=(BLOCK,) * 4), splits=3, **SIZE)
    assert found.even == found.plan.best


def test_placements_with_more_stages_than_layers_are_left_out():
    options = {**SIZE, "stages_per_rank": (1, 8)}
    found = joint(COSTS, splits=3, **options)
    assert found.plan.best.stages_per_rank == 1
    assert any("cannot fill 16 stages" in reason for reason in found.plan.left_out)


def test_nonsense():
    with pytest.raises(ParameterError, match="splits must be a whole number from 1 on; got 0"):
        joint(COSTS, splits=0, **SIZE)
    with pytest.raises(ParameterError, match="no placement can be"):
        joint(COSTS, memory=3, **SIZE)


@pytest.mark.parametrize("seed", [19, 251])
def test_nobody_is_worse_off_than_with_the_split_by_number(seed: int):
    random = Random(seed)
    sizes = [[random.choice([0, 1, 2, 3.3, 10]) for _ in range(7)] for _ in range(9)]
    model = tuple(Layer(F=f, I=i, W=w, held=h, message=m) for f, i, w, h, m, _, _ in sizes)
    found = joint(LayerCosts(layers=model, latency=1, bandwidth=2), splits=2, **SIZE)
    assert found.even is not None
    assert found.plan.best.makespan <= found.even.makespan * (1 + 1e-9)
