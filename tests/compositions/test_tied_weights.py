"""The first and the last layer have one weight: one object in one process, copies in several."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.compositions.harness import Program, check, check_on_processes, families, linears
from tests.pool import Pool
from torch import nn
from torch.optim import SGD

pytestmark = [pytest.mark.torch, pytest.mark.gloo]


def layers() -> list[nn.Module]:
    made = linears()
    made[-1][0].weight = made[0][0].weight  # type: ignore[index]
    return made


# Contributions of two stages are added up in another order than in the loop.
PROGRAM = Program(
    make=layers,
    tied=("0.0.weight", "3.0.weight"),
    optimizer=partial(SGD, lr=0.1, momentum=0.9),
    steps=3,
    exact=False,
)


@families
def test_works(family: str):
    check(PROGRAM, family)


def test_works_on_processes(pool: Callable[[int], Pool]):
    check_on_processes(pool, PROGRAM)
