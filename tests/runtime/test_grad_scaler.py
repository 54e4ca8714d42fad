"""``GradScaler`` has the semantics of torch's, over all optimizers and ranks."""

from __future__ import annotations

from math import inf

import pytest
import torch
from tests.reference import WIDTH, linear_tanh, local_pipeline
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

import fullbore as fb
from fullbore.errors import ParameterError
from fullbore.runtime import GradScaler, Pipeline

pytestmark = pytest.mark.torch


def pipeline(modules: list[nn.Module]) -> Pipeline:
    plan = fb.build("1f1b", num_ranks=len(modules), num_microbatches=2)
    return local_pipeline(modules, plan)


def train(*, overflow_at: int | None, steps: int = 5) -> tuple[list[nn.Module], list[float]]:
    modules = linear_tanh(2)
    pipe = pipeline(modules)
    optimizers: list[Optimizer] = [SGD(m.parameters(), lr=0.1) for m in modules]
    scaler = GradScaler("cpu", 2.0**10, growth_interval=2, pipeline=pipe)
    scales = []
    torch.manual_seed(1)
    for step in range(steps):
        x = torch.randn(4, WIDTH)
        pipe.step(x, target=x, loss_scale=scaler.get_scale())
        if step == overflow_at:
            gradient = next(modules[1].parameters()).grad
            assert gradient is not None
            gradient[0, 0] = inf
        scaler.step(*optimizers)
        scaler.update()
        scales.append(scaler.get_scale())
        for optimizer in optimizers:
            optimizer.zero_grad()
    return modules, scales


def reference(*, overflow_at: int | None, steps: int = 5) -> tuple[nn.Module, list[float]]:
    model = nn.Sequential(*linear_tanh(2))
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", 2.0**10, growth_interval=2)
    scales = []
    torch.manual_seed(1)
    for step in range(steps):
        x = torch.randn(4, WIDTH)
        for part in x.chunk(2):
            loss = (model(part) - part).square().mean()
            scaler.scale(0.5 * loss).backward()
        if step == overflow_at:
            gradient = next(model[1].parameters()).grad
            assert gradient is not None
            gradient[0, 0] = inf
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        optimizer.zero_grad()
    return model, scales


@pytest.mark.parametrize("overflow_at", [None, 0, 3])
def test_it_equals_torch(overflow_at: int | None):
    modules, scales = train(overflow_at=overflow_at)
    model, wanted = reference(overflow_at=overflow_at)
    assert scales == wanted
    for found, expected in zip(
        nn.ModuleList(modules).parameters(), model.parameters(), strict=True
    ):
        assert torch.equal(found, expected)


def test_no_optimizer_steps_when_the_gradient_of_another_overflows():
    modules = linear_tanh(2)
    optimizers = [
        AdamW(m.parameters(), fused=fused) for m, fused in zip(modules, (True, False), strict=True)
    ]
    before = [p.clone() for m in modules for p in m.parameters()]
    for module in modules:
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
    next(modules[1].parameters()).grad[0, 0] = inf  # type: ignore[index]
    scaler = GradScaler("cpu", pipeline=pipeline(modules))
    scaler.step(*optimizers)
    scaler.update()
    after = [p for m in modules for p in m.parameters()]
    assert all(map(torch.equal, before, after))
    assert scaler.get_scale() == 2.0**15


def test_gradients_can_be_looked_at_in_between():
    modules = linear_tanh(2)
    optimizers = [SGD(m.parameters(), lr=1.0) for m in modules]
    for module in modules:
        for parameter in module.parameters():
            parameter.grad = torch.full_like(parameter, 8.0)
    scaler = GradScaler("cpu", 8.0, pipeline=pipeline(modules))
    scaler.unscale_(*optimizers)
    gradient = next(modules[0].parameters()).grad
    assert gradient is not None
    assert torch.equal(gradient, torch.ones_like(gradient))
    with pytest.raises(RuntimeError, match="once a step"):
        scaler.unscale_(*optimizers)
    scaler.step(*optimizers)
    assert torch.equal(gradient, torch.ones_like(gradient))


def test_an_optimizer_without_gradients_and_none_at_all_are_fine():
    modules = linear_tanh(2)
    scaler = GradScaler("cpu", 8.0, growth_interval=1, pipeline=pipeline(modules))
    scaler.step(SGD(modules[0].parameters(), lr=1.0))
    scaler.update()
    scaler.step()
    scaler.update()
    assert scaler.get_scale() == 32.0


def test_an_optimizer_that_comes_late_is_an_error():
    modules = linear_tanh(2)
    first, second = (SGD(m.parameters(), lr=1.0) for m in modules)
    scaler = GradScaler("cpu", pipeline=pipeline(modules))
    scaler.unscale_(first)
    with pytest.raises(ParameterError, match="same optimizers"):
        scaler.step(first, second)


def test_switched_off_it_does_nothing_but_step():
    modules = linear_tanh(2)
    optimizer = SGD(modules[0].parameters(), lr=1.0)
    parameter = next(modules[0].parameters())
    parameter.grad = torch.full_like(parameter, inf)
    scaler = GradScaler("cpu", enabled=False, pipeline=pipeline(modules))
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 1.0
    assert bool(parameter.isinf().all())


@pytest.mark.parametrize("scale", [0.0, -1.0, inf, float("nan")])
def test_a_scale_that_would_lose_the_gradients_is_refused(scale: float):
    modules = linear_tanh(2)
    x = torch.ones(2, WIDTH)
    with pytest.raises(ParameterError, match="loss_scale"):
        pipeline(modules).step(x, target=x, loss_scale=scale)
