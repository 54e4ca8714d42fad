"""Field case C21: a world of four, with one pipeline of ranks 0 and 1 and another of ranks 2 and 3.

Making a group is collective over the world; making a pipeline must not be.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from tests.pool import Pool
from tests.reference import WIDTH, assert_same, gradients, linear_tanh, mse, reference
from torch import Tensor

import fullbore as fb
from fullbore.runtime import P2PTransport, Pipeline, Stage

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

COUNT = 4
FAMILIES = ("1f1b", "interleaved_zero_bubble", "dualpipev")


def batch(pipeline: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(pipeline)
    return torch.randn(2 * COUNT, WIDTH), torch.randn(2 * COUNT, WIDTH)


def run(rank: int, size: int) -> list[dict[int, dict[str, Tensor | None]]]:
    """The gradients of this rank's stages, by family."""
    del size
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    found = []
    for family in FAMILIES:
        plan = fb.build(family, num_ranks=2, num_microbatches=COUNT)
        modules = linear_tanh(plan.num_stages)
        if rank >= 2:
            time.sleep(0.2)  # the other pipeline must not wait for this one
        transport = P2PTransport(pairs[rank // 2], timeout=30.0)
        own = plan.placement.stages_of(rank % 2)
        stages = [Stage(modules[s], s, plan.num_stages) for s in own]
        pipe = Pipeline(stages, plan, transport=transport, loss_fn=mse)
        x, y = batch(rank // 2)
        pipe.step(x, target=y)
        transport.close()
        found.append(dict(zip(own, gradients([modules[s] for s in own]), strict=True)))
    dist.barrier()
    return found


def test_c21_two_pipelines_in_one_world(pool: Callable[[int], Pool]) -> None:
    results = pool(4).run(run)
    for index, family in enumerate(FAMILIES):
        modules = linear_tanh(fb.build(family, num_ranks=2, num_microbatches=COUNT).num_stages)
        for pipeline in range(2):
            x, y = (t.tensor_split(COUNT) for t in batch(pipeline))
            wanted = reference(modules, [(part,) for part in x], y, weights=[1 / COUNT] * COUNT)
            seen = {**results[2 * pipeline][index], **results[2 * pipeline + 1][index]}
            assert sorted(seen) == list(range(len(modules)))
            for stage, found in seen.items():
                for name, gradient in wanted.gradients[stage].items():
                    assert_same(found[name], gradient, exact=True, what=f"{family} {stage} {name}")
