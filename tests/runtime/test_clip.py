"""``clip_grad_norm_`` equals torch's on the whole model."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch
from tests.reference import linear_tanh, local_pipeline
from torch import nn

import fullbore as fb
from fullbore.runtime import Pipeline, clip_grad_norm_

pytestmark = pytest.mark.torch


def pipeline(modules: list[nn.Module]) -> Pipeline:
    plan = fb.build("1f1b", num_ranks=len(modules), num_microbatches=2)
    return local_pipeline(modules, plan)


def with_gradients(*, dtype: torch.dtype = torch.float32) -> list[nn.Module]:
    modules = [module.to(dtype) for module in linear_tanh(3)]
    torch.manual_seed(3)
    for module in modules:
        for parameter in module.parameters():
            parameter.grad = torch.randn_like(parameter)
    return modules


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.5, inf, 0.0])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_it_equals_torch(norm_type: float, max_norm: float):
    ours, wanted = with_gradients(), with_gradients()
    parameters = [p for module in ours for p in module.parameters()]
    total = clip_grad_norm_(parameters, max_norm, norm_type, pipeline=pipeline(ours))
    reference = nn.utils.clip_grad_norm_(nn.ModuleList(wanted).parameters(), max_norm, norm_type)
    torch.testing.assert_close(total, reference)
    for p, q in zip(parameters, nn.ModuleList(wanted).parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_double_gradients_have_a_double_norm():
    modules = with_gradients(dtype=torch.float64)
    parameters = [p for module in modules for p in module.parameters()]
    wanted = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).norm()
    total = clip_grad_norm_(parameters, 1.0, pipeline=pipeline(modules))
    assert total.dtype == torch.float64
    torch.testing.assert_close(total, wanted, rtol=1e-14, atol=0.0)


def test_a_parameter_of_two_stages_counts_once_and_is_scaled_once():
    modules = linear_tanh(2)
    shared = next(modules[0].parameters())
    shared.grad = torch.full_like(shared, 2.0)
    total = clip_grad_norm_([shared, shared], 8.0, pipeline=pipeline(modules))
    assert float(total) == 16.0
    torch.testing.assert_close(shared.grad, torch.ones_like(shared))


@pytest.mark.parametrize("value", [inf, nan])
def test_a_norm_that_is_not_finite_is_an_error_if_asked_for(value: float):
    modules = with_gradients()
    parameters = [p for module in modules for p in module.parameters()]
    gradients = [p.grad.clone() for p in parameters if p.grad is not None]
    assert parameters[0].grad is not None
    gradients[0][0] = parameters[0].grad[0] = value
    with pytest.raises(RuntimeError, match="over the whole pipeline"):
        clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True, pipeline=pipeline(modules))
    for p, before in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(p.grad, before, equal_nan=True)


def test_without_gradients_the_norm_is_zero():
    modules = linear_tanh(2)
    total = clip_grad_norm_(modules[0].parameters(), 1.0, pipeline=pipeline(modules))
    assert float(total) == 0.0
    assert total.dim() == 0
