"""Layers to stages."""

from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullbore.errors import ParameterError
from fullbore.ir import Placement
from fullbore.plan import Layer, even, partition, plan
from fullbore.plan.partition import Partition

BLOCK = Layer(F=4, I=4, W=3, held=5, kept=3, static=2)
MODEL = [Layer(F=1, I=0, W=2, static=9), *[BLOCK] * 14, Layer(F=6, I=6, W=6, held=4, static=9)]
PLACEMENTS = [Placement.linear(3), Placement.loop(2, 2), Placement.vee(2), Placement((0, 1, 1, 2))]


def whole(found: Partition, count: int) -> None:
    """No layer is lost, and no stage is empty."""
    assert [n for stage in found.stages for n in stage] == list(range(count))
    assert all(found.stages)


def best(times: list[int], placement: Placement) -> float:
    """The least bottleneck of all splits."""
    loads = []
    for inner in combinations(range(1, len(times)), placement.num_stages - 1):
        load = [0] * placement.num_ranks
        cuts = [0, *inner, len(times)]
        for (first, end), rank in zip(pairwise(cuts), placement.ranks, strict=True):
            load[rank] += sum(times[first:end])
        loads.append(max(load))
    return min(loads)


@given(st.sampled_from(PLACEMENTS), st.lists(st.integers(1, 9), min_size=4, max_size=9))
def test_the_bottleneck_is_near_the_least(placement: Placement, times: list[int]):
    layers = [Layer(F=time, I=0, W=0) for time in times]
    found = partition(layers, placement)
    whole(found, len(times))
    least = best(times, placement)
    assert max(found.load) <= max(even(layers, placement).load)
    assert max(found.load) <= least * (1 if placement.shape == "linear" else 1.25)


def test_embedding_and_head_make_room():
    for placement, split, better in [
        (Placement.linear(4), 51, 47),
        (Placement.loop(4, 2), 51, 47),
        (Placement.vee(4), 44, 44),
    ]:
        plain, found = even(MODEL, placement), partition(MODEL, placement)
        whole(plain, len(MODEL))
        whole(found, len(MODEL))
        assert sum(found.load) == sum(layer.time for layer in MODEL)
        assert (max(plain.load), max(found.load)) == (split, better)


def test_memory_limits_a_rank():
    placement = Placement.linear(4)
    free = partition(MODEL, placement, in_flight=1)
    limit = max(free.bytes) - 1
    tight = partition(MODEL, placement, in_flight=1, memory=limit)
    assert max(tight.bytes) <= limit < max(free.bytes)
    assert max(tight.load) >= max(free.load)
    with pytest.raises(
        ParameterError, match=r"no split that fits the memory, 10; the best one nee"
    ):
        partition(MODEL, placement, in_flight=1, memory=10)


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), 1e200, "1"])
@pytest.mark.parametrize("field", ["F", "held", "message"])
def test_what_is_no_layer(field: str, wrong: Any):
    with pytest.raises(ParameterError, match="must be"):
        Layer(**{"F": 1, "I": 1, "W": 1, field: wrong})


def test_layers_must_fill_the_stages():
    with pytest.raises(ParameterError, match="3 layers cannot fill 4 stages; use fewer stages"):
        even([BLOCK] * 3, Placement.vee(2))


def test_a_partition_is_what_the_planner_takes():
    placement = Placement.vee(2)
    found = partition(MODEL, placement)
    costs = found.costs(latency=0.5)
    assert sum(costs.table(placement).F) == sum(layer.F for layer in MODEL)
    for shape in (found, even(MODEL, placement)):
        planned = plan(
            num_ranks=2,
            num_microbatches=4,
            costs=shape.costs(latency=0.5),
            stages_per_rank=(2,),
            shapes=("vee",),
            effort=0,
        )
        assert planned.best.makespan > 4 * max(shape.load)
