"""``clip_grad_norm_`` clips by the norm over all stages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.compositions.harness import Program, check, check_on_processes, families
from tests.pool import Pool
from torch.optim import SGD

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

# The norm is larger in every step.
PROGRAM = Program(optimizer=partial(SGD, lr=1.0), max_norm=0.01, steps=3)


@families
def test_works(family: str):
    check(PROGRAM, family)


def test_works_on_processes(pool: Callable[[int], Pool]):
    check_on_processes(pool, PROGRAM)
