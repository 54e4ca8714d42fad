"""Custom functions that compute forward and backward by themselves, with gradients switched off."""

import pytest
import torch
from tests.reference import WIDTH, assert_gradients, local_pipeline, mse, reference
from torch import nn

import fullbore as fb

pytestmark = pytest.mark.torch


def forward(action, ctx) -> None:
    (x,), weight = ctx.args, ctx.stage.module.weight
    assert not torch.is_grad_enabled()
    ctx.state["x"], ctx.state["out"] = x, x @ weight.T
    ctx.deliver_output(ctx.state["out"])


def backward(action, ctx) -> None:
    weight, (gradient,) = ctx.stage.module.weight, ctx.output_gradients
    if ctx.loss is not None:
        difference = ctx.state["out"] - ctx.target
        gradient = gradient * 2 * difference / difference.numel()
    ours = gradient.T @ ctx.state["x"]
    weight.grad = ours if weight.grad is None else weight.grad + ours
    ctx.deliver_gradients([gradient @ weight for _ in ctx.inputs])


def linear(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count)]


@pytest.mark.parametrize("name", ["1f1b", "looped_bfs"])
def test_gradients_computed_by_hand(name: str):
    plan = fb.build(name, num_ranks=2, num_microbatches=4)
    modules, x, y = linear(plan.num_stages), torch.randn(8, WIDTH), torch.randn(8, WIDTH)
    parts = [(part,) for part in x.tensor_split(4)]
    wanted = reference(modules, parts, y.tensor_split(4), weights=[0.25] * 4)
    pipe = local_pipeline(modules, plan, backward_requires_autograd=False)
    pipe.register_custom_function("F", forward)
    pipe.register_custom_function("B", backward)
    with torch.no_grad():
        out = pipe.step(x, target=y)
    assert out.losses is not None
    torch.testing.assert_close(list(out.losses), wanted.losses)
    for module, named in zip(modules, wanted.gradients, strict=True):
        torch.testing.assert_close(module.weight.grad, named["weight"])


def test_with_gradients_switched_on_nothing_changes():
    plan = fb.build("1f1b", num_ranks=2, num_microbatches=2)
    modules, x, y = linear(2), torch.randn(4, WIDTH), torch.randn(4, WIDTH)
    parts = [(part,) for part in x.tensor_split(2)]
    wanted = reference(modules, parts, y.tensor_split(2), weights=[0.5] * 2)
    local_pipeline(modules, plan, backward_requires_autograd=False).step(x, target=y)
    assert_gradients(modules, wanted.gradients, plan)


def test_what_nobody_computes_is_named():
    plan = fb.build("interleaved_zero_bubble", num_ranks=2, num_microbatches=2)
    pipe = local_pipeline(linear(4), plan, backward_requires_autograd=False, loss_fn=mse)
    pipe.register_custom_function("F", forward)
    x = torch.randn(4, WIDTH)
    with torch.no_grad(), pytest.raises(fb.ParameterError, match="computes I, W; register"):
        pipe.step(x, target=x)
    with torch.inference_mode(), pytest.raises(fb.ParameterError, match="switched off"):
        pipe.step(x, target=x)
