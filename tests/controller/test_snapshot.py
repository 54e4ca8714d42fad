"""All that training changes comes back."""

import random
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.controller.cases import data
from torch import nn

from fullbore.controller.snapshot import restore, take
from fullbore.runtime import Stage

pytestmark = pytest.mark.torch


class Noisy(nn.Module):
    """Draws from every generator, and has a buffer that a step changes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x) * random.random() + np.random.rand()


def step(stage: Noisy, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Gradients are added to those that there are."""
    loss = stage(data()[0]).square().mean()
    loss.backward()
    optimizer.step()
    return [loss, *stage.state_dict().values(), *(p.grad for p in stage.parameters())]


def test_what_follows_is_the_same_again():
    module = Noisy()
    optimizers = {3: torch.optim.AdamW(module.parameters())}
    stages = {3: Stage(module, 3, 4)}
    step(module, optimizers[3])
    module.inner[1].eval()
    held = take(stages, optimizers)
    first = [value.clone() for value in step(module, optimizers[3])]
    module.train()
    module.zero_grad()
    for _ in range(2):  # what is held does not change by its use
        restore(held, stages, optimizers)
        assert [part.training for part in module.inner] == [True, False, True]
        assert all(map(torch.equal, step(module, optimizers[3]), first))


def test_gradients_that_there_were_not_are_gone_again():
    module = Noisy()
    stages = {0: Stage(module, 0, 1)}
    held = take(stages, {})
    step(module, torch.optim.SGD(module.parameters(), lr=0.1))
    restore(held, stages, {})
    assert all(p.grad is None for p in module.parameters())


def test_buffers_that_are_not_persistent_come_back():
    module = nn.Linear(8, 8)
    module.register_buffer("mean", torch.zeros(8), persistent=False)
    stages = {0: Stage(module, 0, 1)}
    mean = cast("torch.Tensor", module.mean)
    mean.add_(1)
    held = take(stages, {})
    for _ in range(2):
        mean.add_(1)
        restore(held, stages, {})
        assert mean is module.mean
        assert torch.equal(mean, torch.ones(8))


def test_what_is_frozen_is_frozen_again():
    module = Noisy()
    stages = {0: Stage(module, 0, 1)}
    module.inner[0].requires_grad_(False)
    held = take(stages, {})
    module.requires_grad_(True)
    module.inner[1].requires_grad_(False)
    restore(held, stages, {})
    trainable = [p.requires_grad for p in module.parameters()]
    assert trainable == [False, False, True, True]
