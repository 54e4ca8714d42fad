"""Case C23: two stages whose gradients have the norms 3 and 4 are clipped by 5."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
from tests.pool import Pool
from tests.reference import local_pipeline, mse
from torch import nn

import fullbore as fb
from fullbore.runtime import P2PTransport, Pipeline, Stage, Transport, clip_grad_norm_
from fullbore.runtime.launch import launch

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

WANTED = {2.0: 5.0, inf: 4.0, 1.0: 7.0}
NORMS = (3.0, None, 4.0)


def schedule(num_ranks: int) -> fb.Schedule:
    return fb.build("1f1b", num_ranks=num_ranks, num_microbatches=3)


def stage_with(norm: float | None) -> nn.Module:
    """Its gradient has this norm; None for a stage without parameters."""
    if norm is None:
        return nn.Tanh()
    module = nn.Linear(2, 2, bias=False)
    module.weight.grad = torch.tensor([[norm, 0.0], [0.0, 0.0]])
    return module


def clipped(parameters: list[nn.Parameter], pipe: Pipeline) -> list[tuple[float, list[float]]]:
    """The norms, and what is left of the gradients when they are clipped to 1."""
    found = []
    for norm_type in WANTED:
        before = [p.grad for p in parameters if p.grad is not None]
        for p, gradient in zip(parameters, before, strict=True):
            p.grad = gradient.clone()
        total = clip_grad_norm_(parameters, 1.0, norm_type, pipeline=pipe)
        left = [float(p.grad.norm()) for p in parameters if p.grad is not None]
        found.append((float(total), left))
        for p, gradient in zip(parameters, before, strict=True):
            p.grad = gradient
    return found


def check(found: list[tuple[float, list[float]]], norms: tuple[float, ...]) -> None:
    for (total, left), wanted in zip(found, WANTED.values(), strict=True):
        assert total == wanted
        assert left == pytest.approx([norm / wanted for norm in norms], rel=1e-5)


def test_c23_all_stages_in_one_process():
    modules = [stage_with(norm) for norm in NORMS]
    pipe = local_pipeline(modules, schedule(3))
    check(clipped([*nn.ModuleList(modules).parameters()], pipe), (3.0, 4.0))


def run_rank(transport: Transport, rank: int, norms: tuple[float | None, ...]) -> Any:
    module, size = stage_with(norms[rank]), len(norms)
    pipe = Pipeline(Stage(module, rank, size), schedule(size), loss_fn=mse, transport=transport)
    return clipped([*module.parameters()], pipe)


def run_over_gloo(rank: int, size: int) -> Any:
    transport = P2PTransport(timeout=60.0)
    try:
        return run_rank(transport, rank, (3.0, 4.0))
    finally:
        transport.close()


def test_c23_over_gloo(pool: Callable[[int], Pool]):
    for found, norm in zip(pool(2).run(run_over_gloo), (3.0, 4.0), strict=True):
        check(found, (norm,))


def test_c23_a_stage_without_parameters_over_shared_memory():
    results = launch(run_rank, 3, transport="shm", args=(NORMS,))
    for found, norm in zip(results, NORMS, strict=True):
        check(found, () if norm is None else (norm,))
