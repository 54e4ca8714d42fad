"""Dropout with seeds: the same masks however the model is split, also when recomputed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.compositions.harness import (
    LAYERS,
    Program,
    check,
    check_on_processes,
    families,
    loop,
)
from tests.pool import Pool
from tests.reference import WIDTH
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fullbore.runtime import seeded

pytestmark = [pytest.mark.torch, pytest.mark.gloo]


class Recomputed(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.body, h, use_reentrant=False)
        return out


def block(index: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), seeded(nn.Dropout(0.5), f"{index}.first"), nn.Tanh()
    )


def layers() -> list[nn.Module]:
    return [block(i) for i in range(LAYERS)]


def recomputed() -> list[nn.Module]:
    return [Recomputed(block(i)) for i in range(LAYERS)]


PLAIN = Program(make=layers, seeds=True)
AGAIN = Program(make=recomputed, seeds=True)


@families
def test_works(family: str):
    check(PLAIN, family)
    check(AGAIN, family)


def test_works_on_processes(pool: Callable[[int], Pool]):
    check_on_processes(pool, PLAIN)
    check_on_processes(pool, AGAIN)


def test_recomputation_and_another_state_of_the_generator_change_nothing():
    plain, again = loop(PLAIN), loop(AGAIN)
    for found, wanted in zip(again.losses, plain.losses, strict=True):
        assert found is not None
        assert wanted is not None
        assert all(map(torch.equal, found, wanted))
