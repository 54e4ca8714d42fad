"""Shapes change from step to step, and from microbatch to microbatch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.compositions.harness import COUNT, Batch, Program, check, check_on_processes, families
from tests.pool import Pool
from tests.reference import WIDTH

pytestmark = [pytest.mark.torch, pytest.mark.gloo]


def between_steps(step: int) -> Batch:
    torch.manual_seed(step)
    rows, length = [(2, 6), (2, 3), (1, 6)][step]
    shape = rows, length, WIDTH
    return [(torch.randn(shape), torch.randn(shape)) for _ in range(COUNT)]


def between_microbatches(step: int) -> Batch:
    torch.manual_seed(step)
    shapes = [(1 + (m + step) % 2, 3 + m, WIDTH) for m in range(COUNT)]
    return [(torch.randn(shape), torch.randn(shape)) for shape in shapes]


STEPS = Program(batches=between_steps, steps=3)
MICROBATCHES = Program(batches=between_microbatches, steps=3)


@families
def test_works(family: str):
    check(STEPS, family)
    check(MICROBATCHES, family)


def test_works_on_processes(pool: Callable[[int], Pool]):
    check_on_processes(pool, STEPS)
    check_on_processes(pool, MICROBATCHES)
