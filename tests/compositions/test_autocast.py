"""bfloat16 by autocast: one context around the step, or one inside of every layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from tests.compositions.harness import LAYERS, Program, check, check_on_processes, families, linears
from tests.pool import Pool
from tests.reference import WIDTH
from torch import Tensor, nn
from torch.optim import SGD

pytestmark = [pytest.mark.torch, pytest.mark.gloo]


class Inside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out: Tensor = self.norm(self.linear(h)).tanh()
        return out


def layers() -> list[nn.Module]:
    return [Inside() for _ in range(LAYERS)]


def deep() -> list[nn.Module]:
    """A stage uses one weight twice, whose cast it shares."""
    return [nn.Sequential(layer, layer) for layer in linears()]


AUTOCAST = partial(torch.autocast, "cpu", torch.bfloat16)
AROUND = Program(around=AUTOCAST, optimizer=partial(SGD, lr=0.1))
TWICE = Program(make=deep, around=AUTOCAST)
WITHIN = Program(make=layers)


@families
def test_works(family: str):
    for program in (AROUND, TWICE, WITHIN):
        check(program, family)


def test_works_on_processes(pool: Callable[[int], Pool]):
    check_on_processes(pool, AROUND)
    check_on_processes(pool, WITHIN)
