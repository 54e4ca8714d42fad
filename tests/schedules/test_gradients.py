"""Families with options, and those that PyTorch does not have: training and evaluation.

``tests/runtime/test_families.py`` trains every family without options.
"""

import copy

import pytest
import torch
from tests.reference import (
    WIDTH,
    assert_gradients,
    assert_same,
    linear_tanh,
    local_pipeline,
    reference,
)
from torch import nn

from fullbore.schedules import FAMILIES, build
from fullbore.verify import accumulates_in_order

pytestmark = pytest.mark.torch

NAMES = [name for name, family in FAMILIES.items() if not family.aliases and name != "forward_only"]
OPTIONS = ["zb:limit=1", "zb:limit=8", "zbv_greedy:limit=1", "zbv_greedy:limit=2"]


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("microbatches", [3, 4, 8])
def test_gradients_are_those_of_the_whole_model(name: str, num_ranks: int, microbatches: int):
    schedule = build(name, num_ranks=num_ranks, num_microbatches=microbatches)
    modules = linear_tanh(schedule.num_stages)
    x, y = torch.randn(2 * microbatches, WIDTH), torch.randn(2 * microbatches, WIDTH)
    wanted = reference(
        modules,
        [(part,) for part in x.tensor_split(microbatches)],
        y.tensor_split(microbatches),
        weights=[1 / microbatches] * microbatches,
    )
    losses = local_pipeline(modules, schedule).step(x, target=y).losses
    assert losses is not None
    for found, loss in zip(losses, wanted.losses, strict=True):
        assert_same(found, loss, exact=True, what="loss")
    assert_gradients(modules, wanted.gradients, schedule)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("microbatches", [3, 4, 8])
def test_evaluation_gives_the_outputs_of_the_whole_model(
    name: str, num_ranks: int, microbatches: int
):
    schedule = build(name, num_ranks=num_ranks, num_microbatches=microbatches)
    modules = linear_tanh(schedule.num_stages)
    x = torch.randn(2 * microbatches, WIDTH)
    wanted = nn.Sequential(*copy.deepcopy(modules))(x)
    output = local_pipeline(modules, schedule).eval(x).output
    torch.testing.assert_close(output, wanted, rtol=0, atol=1e-6)
    assert all(p.grad is None for module in modules for p in module.parameters())


@pytest.mark.parametrize("name", [*NAMES, *OPTIONS])
def test_gradients_are_the_same_bits_where_weight_gradients_do_not_wait_for_the_end(name: str):
    schedule = build(name, num_ranks=4, num_microbatches=8)
    assert all(accumulates_in_order(schedule)) == (name != "dora")
