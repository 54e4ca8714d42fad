"""Gradients add up over several steps before the parameters are updated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.compositions.harness import Program, check, check_on_processes, families
from tests.pool import Pool
from torch.optim import SGD

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

# Without an update the gradients of all three steps are compared, with one the weights after two.
NONE = Program(steps=3)
SOME = Program(steps=4, every=2, optimizer=partial(SGD, lr=0.1))


@families
def test_works(family: str):
    check(NONE, family)
    check(SOME, family)


def test_works_on_processes(pool: Callable[[int], Pool]):
    check_on_processes(pool, SOME)
