"""Reentrant activation checkpoints: the backward of such a stage is done in I, and W is empty."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from tests.compositions.harness import (
    COUNT,
    Program,
    check,
    check_on_processes,
    families,
    plan,
    split,
)
from tests.compositions.recomputed import Recomputed, layers
from tests.pool import Pool
from tests.reference import WIDTH, local_pipeline

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

PROGRAM = Program(make=partial(layers, use_reentrant=True))


@families
def test_works(family: str):
    check(PROGRAM, family)


def test_works_on_processes(pool: Callable[[int], Pool]):
    check_on_processes(pool, PROGRAM)


@families
def test_no_forward_runs_more_often_than_twice(family: str):
    schedule = plan(family)
    parts = split(PROGRAM, schedule, range(schedule.num_stages))
    x = torch.randn(2 * COUNT, WIDTH)
    local_pipeline([*parts.values()], schedule).step(x, target=x)
    counted = [m for part in parts.values() for m in part.modules() if isinstance(m, Recomputed)]
    assert [layer.runs for layer in counted] == [2 * COUNT] * 4
