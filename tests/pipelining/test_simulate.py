"""Steps of a schedule one by one, and orders as tables."""

import pytest
import torch.distributed.pipelining.schedules as theirs
from tests.pipelining.local import MULTI, make

from fullbore.pipelining.schedules import (
    _Action,
    _format_pipeline_order,
    _simulate_comms_compute,
)

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "name", ["LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"]
)
def test_simulated_steps_are_torchs(name: str):
    """Where torch simulates at all: not what it prepares to run."""
    schedule = make(name, 6)
    order = {
        rank: [a for a in actions if "SHARD" not in str(a) and "REDUCE" not in str(a)]
        for rank, actions in schedule.pipeline_order_with_comms.items()
    }
    placement = schedule.stage_index_to_group_rank.__getitem__
    found = _simulate_comms_compute(order, placement, 4)
    assert found == theirs._simulate_comms_compute(order, placement, 4)


@pytest.mark.parametrize("name", MULTI)
def test_every_schedule_is_simulated(name: str):
    schedule = make(name)
    steps = schedule._simulate()
    order = schedule.pipeline_order_with_comms
    assert {r: [a for a in p if a is not None] for r, p in steps.items()} == order


def test_what_cannot_run_is_not_simulated():
    order = {0: [_Action.from_str(text) for text in ("0B0", "0F0")]}
    with pytest.raises(ValueError, match="0B0"):
        _simulate_comms_compute(order, lambda stage: 0, 1)
    with pytest.raises(ValueError, match="stage_to_rank says"):
        _simulate_comms_compute(make("LoopedBFS").pipeline_order, lambda stage: 0, 4)


def test_an_order_as_a_table():
    order = make("ZBVZeroBubble", 2)._simulate()
    wanted = theirs._format_pipeline_order(order, 3)
    found = _format_pipeline_order(order, 3)
    assert found.split() == wanted.split()
    assert [line.rstrip() for line in _format_pipeline_order({0: [None], 1: []}).splitlines()] == [
        "        Rank 0 Rank 1",
        "Step 0:",
    ]
    assert _format_pipeline_order({}).strip() == ""
