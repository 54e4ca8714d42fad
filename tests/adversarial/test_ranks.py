"""Random schedules, and what a walk makes of them, on ranks that share nothing but messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
import torch.distributed as dist
from tests.adversarial.budget import examples
from tests.adversarial.compare import assert_gradients_right, batches, model
from tests.adversarial.draws import is_valid, lowered, overlapped, swap_neighbours
from tests.pool import Pool
from tests.reference import gradients, mse
from torch import Tensor, nn

from fullbore.ir import Schedule
from fullbore.runtime import P2PTransport, Pipeline, SharedMemoryTransport, Stage, Transport
from fullbore.runtime.transport.shm import socket_pairs

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

Found = dict[int, Any]


def drawn(num_ranks: int, seed: int) -> Schedule:
    """A lowered schedule of this many ranks; every second one far from what lowering makes."""
    random = Random(seed)
    plan = overlapped(random, num_ranks=num_ranks, forward_only=False)
    plan = lowered(random, plan)
    for _ in range(24 * (seed % 2)):
        mutant = swap_neighbours(random, plan)
        plan = mutant if is_valid(mutant) else plan
    return plan


def step(
    transport: Transport,
    rank: int,
    plan: Schedule,
    modules: Sequence[nn.Module],
    data: Sequence[tuple[Tensor, Tensor]],
) -> Found:
    """The gradients of the rank's stages after an evaluation and a step a batch."""
    own = plan.placement.stages_of(rank)
    stages = [Stage(modules[s], s, plan.num_stages) for s in own]
    pipe = Pipeline(stages, plan, transport=transport, loss_fn=mse)
    for x, y in data:
        pipe.eval(x, target=y)
        pipe.step(x, target=y)
    return dict(zip(own, gradients([modules[s] for s in own]), strict=True))


def over_gloo(rank: int, size: int, seeds: range) -> list[Found]:
    found = []
    for seed in seeds:
        transport = P2PTransport(timeout=30.0)
        try:
            plan = drawn(size, seed)
            modules = model(plan.num_stages, branches=True)
            found.append(step(transport, rank, plan, modules, batches(plan)))
        except Exception as error:
            error.add_note(f"drawn({size}, {seed})")
            raise
        finally:
            transport.close()
        dist.barrier()
    return found


@pytest.mark.parametrize("size", [2, 4])
def test_over_gloo(pool: Callable[[int], Pool], size: int) -> None:
    seeds = range(examples(0.05))
    for seed, *ranks in zip(seeds, *pool(size).run(over_gloo, seeds, timeout=600.0), strict=True):
        assert_gradients_right(drawn(size, seed), ranks)


@pytest.mark.parametrize("size", [2, 4])
def test_through_shared_memory(size: int) -> None:
    for seed in range(examples(0.1)):
        plan = drawn(size, seed)
        assert_gradients_right(plan, in_threads(plan, size))


def in_threads(plan: Schedule, size: int) -> list[Found]:
    ends, modules, data = socket_pairs(size), model(plan.num_stages, branches=True), batches(plan)

    def play(rank: int) -> Found:
        transport = SharedMemoryTransport(rank, ends[rank], timeout=30.0)
        try:
            return step(transport, rank, plan, modules, data)
        finally:
            transport.close()

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(play, range(size)))
