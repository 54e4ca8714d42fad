"""Compiled stages. A compiled graph is one node to autograd, so that the weights' gradients are
computed in I, and W has nothing left to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from tests.compositions.harness import Program, check, check_on_processes, families
from tests.pool import Pool
from torch import nn
from torch.optim import SGD

pytestmark = [pytest.mark.torch, pytest.mark.gloo]


def function(module: nn.Module, *, backend: str) -> nn.Module:
    compiled = torch.compile(module, backend=backend)
    assert isinstance(compiled, nn.Module)
    return compiled


def in_place(module: nn.Module) -> nn.Module:
    module.compile(backend="aot_eager")
    return module


def layer_by_layer(module: nn.Module) -> nn.Module:
    for layer in module.layers.values():  # type: ignore[operator]
        layer.compile(backend="aot_eager")
    return module


TRAINED = partial(Program, optimizer=partial(SGD, lr=0.1))
WRAPPED = TRAINED(prepare=partial(function, backend="aot_eager"))
METHOD = TRAINED(prepare=in_place)
LAYERS = TRAINED(prepare=layer_by_layer)
# Its kernels round differently.
INDUCTOR = TRAINED(prepare=partial(function, backend="inductor"), exact=False)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    torch.compiler.reset()


@families
def test_works(family: str):
    for program in (WRAPPED, METHOD, LAYERS):
        check(program, family)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # PyTorch's own import
def test_inductor():
    check(INDUCTOR, "interleaved_zero_bubble")


def test_works_on_processes(pool: Callable[[int], Pool]):
    check_on_processes(pool, METHOD)
