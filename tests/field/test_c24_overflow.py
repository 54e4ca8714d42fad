"""Case C24: an infinite gradient in one stage makes every rank skip the step."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
from tests.pool import Pool
from tests.reference import WIDTH, linear_tanh, mse
from torch import nn

import fullbore as fb
from fullbore.runtime import GradScaler, LocalTransport, P2PTransport, Pipeline, Stage, Transport

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

OVERFLOW = 2
FAMILIES = ("1f1b", "interleaved_1f1b", "zbv_zero_bubble")


def train(transport: Transport, ranks: range, family: str) -> Any:
    """Four steps; in one of them the gradient of the last stage is infinite. The weights and the
    scale after each."""
    schedule = fb.build(family, num_ranks=2, num_microbatches=4)
    modules = linear_tanh(schedule.num_stages)
    own = [s for rank in ranks for s in schedule.placement.stages_of(rank)]
    stages = [Stage(modules[s], s, schedule.num_stages) for s in own]
    pipe = Pipeline(stages, schedule, loss_fn=mse, transport=transport)
    optimizers = [torch.optim.SGD(modules[s].parameters(), lr=0.1) for s in own]
    scaler = GradScaler("cpu", 2.0**8, growth_interval=2, pipeline=pipe)
    torch.manual_seed(1)
    found = []
    for step in range(4):
        x = torch.randn(8, WIDTH)
        pipe.step(x, target=x.sin(), loss_scale=scaler.get_scale())
        if step == OVERFLOW and pipe.has_last:
            gradient = next(modules[-1].parameters()).grad
            assert gradient is not None
            gradient[0, 0] = inf
        scaler.step(*optimizers)
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad()
        weights = {s: [p.detach().clone() for p in modules[s].parameters()] for s in own}
        found.append((scaler.get_scale(), weights))
    return found


def run_over_gloo(rank: int, size: int, family: str) -> Any:
    transport = P2PTransport(timeout=60.0)
    try:
        return train(transport, range(rank, rank + 1), family)
    finally:
        transport.close()


def reference(family: str) -> Any:
    schedule = fb.build(family, num_ranks=2, num_microbatches=4)
    modules = nn.Sequential(*linear_tanh(schedule.num_stages))
    optimizer = torch.optim.SGD(modules.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", 2.0**8, growth_interval=2)
    torch.manual_seed(1)
    found = []
    for step in range(4):
        x = torch.randn(8, WIDTH)
        for part in x.chunk(4):
            scaler.scale(mse(modules(part), part.sin()) / 4).backward()
        if step == OVERFLOW:
            gradient = next(modules[-1].parameters()).grad
            assert gradient is not None
            gradient[0, 0] = inf
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        weights = {s: [p.detach().clone() for p in m.parameters()] for s, m in enumerate(modules)}
        found.append((scaler.get_scale(), weights))
    return found


def check(results: list[Any], family: str) -> None:
    for step, (scale, wanted) in enumerate(reference(family)):
        seen = set()
        for result in results:
            found_scale, weights = result[step]
            assert found_scale == scale
            seen |= set(weights)
            for s, parameters in weights.items():
                for found, expected in zip(parameters, wanted[s], strict=True):
                    assert torch.equal(found, expected)
                if step == OVERFLOW:
                    before = result[step - 1][1][s]
                    assert all(map(torch.equal, parameters, before))
        assert seen == set(wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_c24_all_stages_in_one_process(family: str):
    check([train(LocalTransport(), range(2), family)], family)


@pytest.mark.parametrize("family", FAMILIES)
def test_c24_every_rank_skips_and_keeps_the_same_scale(pool: Callable[[int], Pool], family: str):
    check(pool(2).run(run_over_gloo, family), family)
