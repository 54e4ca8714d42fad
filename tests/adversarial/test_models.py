"""Models, arguments and losses that have caught out a split backward or a hand-over, under every
family, against the plain loop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.reference import (
    WIDTH,
    assert_gradients,
    assert_same,
    linear_tanh,
    local_pipeline,
    mse,
    reference,
)
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import fullbore as fb
from fullbore.runtime import Replicate

pytestmark = pytest.mark.torch

COUNT = 4

families = pytest.mark.parametrize(
    "family",
    [
        *("gpipe", "1f1b", "looped_bfs", "interleaved_1f1b"),
        *("interleaved_zero_bubble", "zbv_zero_bubble", "dualpipev"),
    ],
)


def plan_of(family: str) -> fb.Schedule:
    return fb.build(family, num_ranks=2, num_microbatches=COUNT)


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(8, WIDTH), torch.randn(8, WIDTH)


def wanted_of(modules: Sequence[nn.Module], x: Tensor, y: Tensor, **options: Any) -> Any:
    parts = [(part,) for part in x.tensor_split(COUNT)]
    weights = [1 / COUNT] * COUNT
    return reference(modules, parts, y.tensor_split(COUNT), weights=weights, **options)


class Layer(nn.Module):
    """A linear layer, and what a case does with it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Any:
        return self.linear(h).tanh()


class OwnParameter(Layer):
    """Hands a parameter on, as learned positions are."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.rand(WIDTH))

    def forward(self, h: Tensor, positions: Tensor | None = None) -> Any:
        out = self.linear(h if positions is None else h * positions).tanh()
        return out, self.positions


class RunningMean(Layer):
    """Changes a buffer in place and hands on a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, h: Tensor) -> Any:
        out = self.linear(h).tanh()
        mean = self.get_buffer("mean")
        mean.mul_(0.9).add_(out.detach().mean(0))
        return out + mean.clone()


class SpectralNorm(Layer):
    def __init__(self) -> None:
        super().__init__()
        parametrizations.spectral_norm(self.linear)


class WeightNorm(Layer):
    def __init__(self) -> None:
        super().__init__()
        parametrizations.weight_norm(self.linear)


class InnerGradient(Layer):
    """The gradient of an energy is part of its output."""

    def forward(self, h: Tensor) -> Any:
        inner = h.detach().requires_grad_()
        energy = self.linear(inner).tanh().sum()
        (gradient,) = torch.autograd.grad(energy, inner, create_graph=True)
        return self.linear(h).tanh() + gradient


class InPlace(Layer):
    """Changes its own results in place, as ``ReLU(inplace=True)`` does."""

    def forward(self, h: Tensor) -> Any:
        return self.linear(h).add_(1).mul_(0.5).relu_()


class TwoGraphs(Layer):
    """Half of the output has no gradient, half of the rows have no path to the input."""

    def forward(self, h: Tensor) -> Any:
        out = self.linear(h).tanh()
        return torch.cat([out[:1].detach(), self.linear.bias.expand(1, WIDTH).tanh() + out[1:]])


class Last(nn.Module):
    """The first output alone."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        out = self.module(*args)
        return out[0] if isinstance(out, tuple) else out


LAYERS = (
    *(OwnParameter, RunningMean, SpectralNorm, WeightNorm, InnerGradient, InPlace, TwoGraphs),
)


@families
@pytest.mark.parametrize("layer", LAYERS)
def test_layers(layer: type[nn.Module], family: str) -> None:
    plan, (x, y) = plan_of(family), batch()
    torch.manual_seed(0)
    modules = [layer() for _ in range(plan.num_stages - 1)]
    modules.append(Last(layer()))
    wanted = wanted_of(modules, x, y)
    local_pipeline(modules, plan).step(x, target=y)
    assert_gradients(modules, wanted.gradients, plan)


@families
def test_one_layer_is_every_stage(family: str) -> None:
    plan, (x, y) = plan_of(family), batch()
    torch.manual_seed(0)
    shared = Layer()
    modules: list[nn.Module] = [nn.Sequential(shared) for _ in range(plan.num_stages)]
    wanted = wanted_of(modules, x, y).gradients[0]["0.linear.weight"]
    local_pipeline(modules, plan).step(x, target=y)
    assert_same(shared.linear.weight.grad, wanted, exact=False, what="the shared weight")


@families
def test_complex_numbers(family: str) -> None:
    plan, z = plan_of(family), torch.complex(*batch())
    torch.manual_seed(0)
    modules = [nn.Linear(WIDTH, WIDTH, dtype=torch.cfloat) for _ in range(plan.num_stages)]

    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).abs().square().mean()

    wanted = wanted_of(modules, z, z, loss_fn=loss_fn)
    local_pipeline(modules, plan, loss_fn=loss_fn).step(z, target=z)
    assert_gradients(modules, wanted.gradients, plan)


@families
def test_layers_that_are_made_in_the_first_forward(family: str) -> None:
    plan, (x, y) = plan_of(family), batch()
    torch.manual_seed(0)
    modules: list[nn.Module] = [nn.LazyLinear(WIDTH) for _ in range(plan.num_stages)]
    pipe = local_pipeline(modules, plan)
    pipe.eval(x)
    wanted = wanted_of(modules, x, y)
    pipe.step(x, target=y)
    assert_gradients(modules, wanted.gradients, plan)


class Scaled(Layer):
    def forward(self, h: Tensor, *, scale: Tensor | None = None) -> Any:
        assert scale is not None
        return super().forward(h) * scale


@families
def test_a_keyword_that_is_a_parameter(family: str) -> None:
    plan, (x, y) = plan_of(family), batch()
    torch.manual_seed(0)
    modules = [Scaled() for _ in range(plan.num_stages)]
    scale = nn.Parameter(torch.rand(WIDTH))
    other = copy.deepcopy(scale)
    wanted = wanted_of(modules, x, y, kwargs=[{"scale": other}] * COUNT)
    pipe = local_pipeline(modules, plan, kwargs_spec={"scale": Replicate()})
    pipe.step(x, target=y, scale=scale)
    assert_gradients(modules, wanted.gradients, plan)
    assert_same(scale.grad, other.grad, exact=False, what="scale")


@families
def test_a_target_that_is_a_parameter(family: str) -> None:
    plan, (x, y) = plan_of(family), batch()
    modules = linear_tanh(plan.num_stages)
    target, other = nn.Parameter(y.clone()), nn.Parameter(y.clone())
    wanted = wanted_of(modules, x, other)
    local_pipeline(modules, plan).step(x, target=target)
    assert_gradients(modules, wanted.gradients, plan)
    assert_same(target.grad, other.grad, exact=False, what="target")


def with_head(head: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda output, target: mse(head(output), target)


@families
def test_a_loss_with_parameters_of_its_own(family: str) -> None:
    plan, (x, y) = plan_of(family), batch()
    modules = linear_tanh(plan.num_stages)
    head = nn.Linear(WIDTH, WIDTH)
    other = copy.deepcopy(head)
    wanted = wanted_of(modules, x, y, loss_fn=with_head(other))
    local_pipeline(modules, plan, loss_fn=with_head(head)).step(x, target=y)
    assert_gradients(modules, wanted.gradients, plan)
    assert_same(head.weight.grad, other.weight.grad, exact=False, what="head")


def penalised(output: Tensor, target: Tensor) -> Tensor:
    loss = mse(output, target)
    (gradient,) = torch.autograd.grad(loss, output, create_graph=True)
    return loss + gradient.square().sum()


@families
def test_a_loss_that_takes_gradients_itself(family: str) -> None:
    plan, (x, y) = plan_of(family), batch()
    modules = linear_tanh(plan.num_stages)
    wanted = wanted_of(modules, x, y, loss_fn=penalised)
    local_pipeline(modules, plan, loss_fn=penalised).step(x, target=y)
    assert_gradients(modules, wanted.gradients, plan)


@families
def test_what_is_frozen_changes_between_steps(family: str) -> None:
    plan, (x, y) = plan_of(family), batch()
    modules = linear_tanh(plan.num_stages)
    pipe = local_pipeline(modules, plan)
    pipe.step(x, target=y)
    for frozen in (0, 1, plan.num_stages - 1):
        for stage, module in enumerate(modules):
            module.zero_grad()
            module.requires_grad_(stage != frozen)
        wanted = wanted_of(modules, x, y)
        pipe.step(x, target=y)
        assert_gradients(modules, wanted.gradients, plan)


@families
def test_layers_are_exchanged_between_steps(family: str) -> None:
    plan, (x, y) = plan_of(family), batch()
    modules = linear_tanh(plan.num_stages)
    pipe = local_pipeline(modules, plan)
    pipe.step(x, target=y)
    for module in modules:
        module[0] = nn.Linear(WIDTH, WIDTH)  # type: ignore[operator]
    wanted = wanted_of(modules, x, y)
    pipe.step(x, target=y)
    assert_gradients(modules, wanted.gradients, plan)
