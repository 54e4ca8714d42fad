"""Evaluation between steps gives the losses of evaluation mode, and leaves training alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.compositions.harness import LAYERS, Program, check, check_on_processes, families
from tests.pool import Pool
from tests.reference import WIDTH
from torch import nn
from torch.optim import SGD

pytestmark = [pytest.mark.torch, pytest.mark.gloo]


def layers() -> list[nn.Module]:
    """In evaluation mode they use and keep the running mean, in training they change it."""
    return [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())
        for _ in range(LAYERS)
    ]


PROGRAM = Program(make=layers, evaluates=True, steps=3, optimizer=partial(SGD, lr=0.1))


@families
def test_works(family: str):
    check(PROGRAM, family)


def test_works_on_processes(pool: Callable[[int], Pool]):
    check_on_processes(pool, PROGRAM)
