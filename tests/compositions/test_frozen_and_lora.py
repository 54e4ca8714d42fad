"""Frozen layers, frozen parts of layers, and low-rank adapters on a frozen base."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from tests.compositions.harness import LAYERS, Program, check, check_on_processes, families, linears
from tests.pool import Pool
from tests.reference import WIDTH
from torch import Tensor, nn
from torch.optim import AdamW

pytestmark = [pytest.mark.torch, pytest.mark.gloo]


class Lora(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, WIDTH))
        self.b = nn.Parameter(torch.randn(WIDTH, 2))

    def forward(self, h: Tensor) -> Tensor:
        added: Tensor = self.base(h) + h @ (self.b @ self.a).t()
        return added.tanh()


def adapters() -> list[nn.Module]:
    return [Lora() for _ in range(LAYERS)]


def frozen(*indices: int) -> list[nn.Module]:
    made = linears()
    for index in indices:
        made[index].requires_grad_(False)
    made[2].get_parameter("0.bias").requires_grad_(False)
    return made


LORA = Program(make=adapters, optimizer=partial(AdamW, lr=0.01))
FIRST = Program(make=partial(frozen, 0))
MIDDLE = Program(make=partial(frozen, 1))
ALL_BUT_LAST = Program(make=partial(frozen, 0, 1, 2))


@families
def test_works(family: str):
    for program in (LORA, FIRST, MIDDLE, ALL_BUT_LAST):
        check(program, family)


def test_works_on_processes(pool: Callable[[int], Pool]):
    check_on_processes(pool, LORA)
    check_on_processes(pool, ALL_BUT_LAST)
