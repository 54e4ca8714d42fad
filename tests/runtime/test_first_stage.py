"""A first stage sees the batch as it is given, also where its backward is split."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.reference import WIDTH, assert_gradients, linear_tanh, local_pipeline, reference
from torch import Tensor, nn

import fullbore as fb

pytestmark = pytest.mark.torch

FAMILIES = ("1f1b", "interleaved_zero_bubble", "zbv_zero_bubble", "dualpipev")
M = 4


class Batched(nn.Module):
    """A product that torch computes in another way if the batch asks for a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, WIDTH, WIDTH) / WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(x, self.w).sum(0)


class Square(nn.Linear):
    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)


class Curious(Square):
    """Does what it should not, which is the user's business."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 2 if x.requires_grad else x)


class Running(Square):
    """Keeps a running mean of its input, without no_grad()."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return super().forward(x - self.mean)


class ByNumpy(Square):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.from_numpy(x.numpy() * 0.5))


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))


@pytest.mark.parametrize("kind", [Batched, Curious, Running, ByNumpy, Normed])
@pytest.mark.parametrize("name", FAMILIES)
def test_bit_for_bit_as_in_the_unpipelined_model(name: str, kind: Any) -> None:
    plan = fb.build(name, num_ranks=2, num_microbatches=M)
    torch.manual_seed(0)
    modules = [kind(), *linear_tanh(plan.num_stages - 1)]
    x, y = torch.randn(2 * M, WIDTH), torch.randn(2 * M, WIDTH)
    wanted = reference(modules, [(p,) for p in x.split(2)], y.split(2), weights=[1 / M] * M)
    out = local_pipeline(modules, plan).step(x, target=y)
    assert out.losses is not None
    assert all(map(torch.equal, out.losses, wanted.losses))
    assert_gradients(modules, wanted.gradients, plan)
    assert not x.requires_grad
    assert not any(buffer.requires_grad for buffer in modules[0].buffers())
