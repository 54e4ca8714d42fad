"""Field cases B07 and B08: frozen stages under every family with a split backward."""

import pytest
import torch
from tests.reference import WIDTH, assert_gradients, linear_tanh, local_pipeline, reference

import fullbore as fb
from fullbore.errors import ParameterError

pytestmark = pytest.mark.torch

SPLIT = ("interleaved_zero_bubble", "zbv_zero_bubble", "dualpipev")


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize("frozen", [[0], [0, 1, 2], [1], [3], [0, 2]])
def test_b07_b08_trainable_stages_get_their_whole_gradient(name: str, frozen: list[int]) -> None:
    plan = fb.build(name, num_ranks=2, num_microbatches=4, stages_per_rank=2)
    modules = linear_tanh(4)
    for stage in frozen:
        modules[stage].requires_grad_(False)
    x, y = torch.randn(8, WIDTH), torch.randn(8, WIDTH)
    wanted = reference(
        modules, [(p,) for p in x.tensor_split(4)], y.tensor_split(4), weights=[0.25] * 4
    )
    local_pipeline(modules, plan).step(x, target=y)
    assert_gradients(modules, wanted.gradients, plan)
    trained = [s for s in range(4) if s not in frozen]
    assert all(p.grad is not None for s in trained for p in modules[s].parameters())


@pytest.mark.parametrize("name", ["1f1b", *SPLIT])
def test_b08_a_model_that_is_all_frozen_trains_nothing(name: str) -> None:
    plan = fb.build(name, num_ranks=2, num_microbatches=4)
    modules = linear_tanh(plan.num_stages)
    for module in modules:
        module.requires_grad_(False)
    x = torch.randn(8, WIDTH)
    with pytest.raises(ParameterError, match="every parameter frozen"):
        local_pipeline(modules, plan).step(x, target=x)
