"""``GradScaler``: an overflow in one stage stops the step of all, and the scale stays common."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from tests.compositions.harness import Program, check, check_on_processes, families
from tests.pool import Pool
from torch.optim import SGD

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

# The scale falls once; gradients are compared while they are scaled and after.
PROGRAM = Program(optimizer=partial(SGD, lr=0.1), scale=2.0**12, overflow=1, steps=4)
HALF = Program(
    optimizer=partial(SGD, lr=0.1),
    scale=2.0**12,
    overflow=1,
    steps=3,
    max_norm=0.5,
    around=partial(torch.autocast, "cpu", torch.bfloat16),
)


@families
def test_works(family: str):
    check(PROGRAM, family)


def test_works_on_processes(pool: Callable[[int], Pool]):
    check_on_processes(pool, PROGRAM)


@families
def test_autocast_and_clipping_go_with_it(family: str):
    check(HALF, family)
