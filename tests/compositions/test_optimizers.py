"""Optimizers with state, one for all stages of a process or one for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.compositions.harness import Program, check, check_on_processes, families
from tests.pool import Pool
from torch.optim import SGD, AdamW

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

MOMENTUM = Program(optimizer=partial(SGD, lr=0.1, momentum=0.9, nesterov=True), steps=3)
ADAM = Program(optimizer=partial(AdamW, lr=1e-2), steps=3)
EACH = Program(optimizer=partial(AdamW, lr=1e-2), each=True, steps=3)


@families
def test_works(family: str):
    for program in (MOMENTUM, ADAM, EACH):
        check(program, family)


def test_works_on_processes(pool: Callable[[int], Pool]):
    check_on_processes(pool, EACH)
