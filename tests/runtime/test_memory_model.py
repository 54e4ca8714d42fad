"""The simulator's peak memory is what the local engine holds, by the lifetimes of its tensors.

What stages hold of one microbatch is measured with one stage a rank and one microbatch; what any
schedule then holds of many, on ranks with several stages, is for the simulator to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch
from bench.runtime_memory import Watch
from tests.reference import mse
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fullbore as fb
from fullbore.execute import Interpreter
from fullbore.ir import Kind
from fullbore.runtime import LocalTransport, Pipeline, Stage
from fullbore.runtime.transport.base import Edge
from fullbore.runtime.tree import Tree, tensors
from fullbore.runtime.worker import StageWorker
from fullbore.sim import TableCosts, measure, simulate

pytestmark = pytest.mark.torch

WIDTH, ROWS = 64, 4
MESSAGE = WIDTH * ROWS * 4
SMALL = 256  # bytes; losses and their weights are smaller, activations larger
HIDDEN = (32, 96, 48, 128)


class RankWatch(Watch):
    """Counts the storages that each rank's actions make, until they die."""

    def __init__(self) -> None:
        super().__init__()
        self.rank: int | None = None
        self.of: Counter[int] = Counter()

    def made(self, size: int) -> Callable[[], None] | None:
        rank = self.rank
        if rank is None or size <= SMALL:
            return None
        self.of[rank] += size
        return lambda: self.of.subtract({rank: size})


class Copying(LocalTransport):
    """What is on its way belongs to nobody; what has arrived, to the rank that took it."""

    def __init__(self, watch: RankWatch) -> None:
        super().__init__()
        self._watch = watch

    def send(self, edge: Edge, tag: int, value: Tree) -> None:
        rank, self._watch.rank = self._watch.rank, None
        super().send(edge, tag, pytree.tree_map_only(Tensor, Tensor.clone, value))
        self._watch.rank = rank

    def recv(self, edge: Edge, tag: int) -> Tree:
        return pytree.tree_map_only(
            Tensor,
            lambda t: t.detach().clone().requires_grad_(t.requires_grad),
            super().recv(edge, tag),
        )


def modules(num_stages: int) -> list[nn.Module]:
    torch.manual_seed(0)
    sizes = [HIDDEN[s % len(HIDDEN)] for s in range(num_stages)]
    return [
        nn.Sequential(nn.Linear(WIDTH, n), nn.Tanh(), nn.Linear(n, WIDTH), nn.LayerNorm(WIDTH))
        for n in sizes
    ]


def watched(plan: fb.Schedule) -> list[tuple[int, fb.Action, int]]:
    """What each rank held when it turned to each piece of computation."""
    watch, stages = RankWatch(), modules(plan.num_stages)
    seen: list[tuple[int, fb.Action, int]] = []
    for parameter in nn.ModuleList(stages).parameters():
        parameter.grad = torch.zeros_like(parameter)  # which is there from the start
    pipe = Pipeline(
        [Stage(module, index, len(stages)) for index, module in enumerate(stages)],
        plan,
        transport=Copying(watch),
        loss_fn=mse,
    )
    ranks, run, do = plan.placement.ranks, Interpreter.run, StageWorker._do

    @contextmanager
    def around(action: fb.Action) -> Iterator[None]:
        watch.rank = ranks[action.leaves[0].stage]
        yield
        watch.rank = None

    def run_watched(self: Interpreter, **options: Any) -> None:
        run(self, **{**options, "around": around})

    def do_watched(self: StageWorker, steps: Any, stage: int, microbatch: int) -> None:
        # After an overlap's first part its message still waits to be sent. Such count nowhere here.
        waiting = [
            value
            for unit in self._units.values()
            if ranks[unit.index] == ranks[stage]
            for queue in (unit.outgoing, unit.returning)
            for value in queue.values()
        ]
        sent = sum(tensor.nbytes for tensor in tensors(waiting))
        held = watch.of[ranks[stage]] - sent
        seen.append((ranks[stage], fb.Action(stage, steps.kind, microbatch), held))
        do(self, steps, stage, microbatch)

    x = torch.randn(ROWS * plan.num_microbatches, WIDTH)
    with (
        patch.object(Interpreter, "run", run_watched),
        patch.object(StageWorker, "_do", do_watched),
        watch,
    ):
        pipe.step(x, target=x)
    assert not any(watch.of.values())
    return seen


@cache
def costs(num_stages: int, *, split: bool) -> dict[str, list[int]]:
    """What each stage holds of a microbatch before its backward, and before its W."""
    name = "interleaved_zero_bubble" if split else "1f1b"
    lone = fb.build(name, num_ranks=num_stages, stages_per_rank=1, num_microbatches=1)
    held = {(a.kind, a.stage): size for _, a, size in watched(lone)}
    kinds = (Kind.I, Kind.W) if split else (Kind.B, Kind.B)
    names = ("activation_bytes", "kept_bytes")
    return {
        key: [held[kind, stage] for stage in range(num_stages)]
        for key, kind in zip(names, kinds, strict=True)
    }


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("stages_per_rank", [1, 2])
@pytest.mark.parametrize("name", [name for name in fb.FAMILIES if name != "forward_only"])
def test_the_simulated_peak_is_the_measured_one(
    name: str, stages_per_rank: int, num_ranks: int
) -> None:
    family = fb.FAMILIES[name]
    if family.fixed_stages_per_rank and stages_per_rank != family.default_stages_per_rank:
        stages_per_rank = family.default_stages_per_rank
    plan = fb.build(name, num_ranks=num_ranks, num_microbatches=6, stages_per_rank=stages_per_rank)
    kinds = {leaf.kind for _, _, action in plan.actions() for leaf in action.leaves}
    table: dict[str, Any] = {**costs(plan.num_stages, split=Kind.I in kinds)}
    crosses = plan.placement.crosses
    table["message_bytes"] = [
        0 if stage == 0 or crosses(stage) else MESSAGE for stage in range(plan.num_stages)
    ]
    model = TableCosts(F=1, I=1, W=1, **table)
    wanted = [int(p.bytes) for p in measure(plan, simulate(plan, model), model).peak]
    found = [0] * num_ranks
    for rank, _, size in watched(plan):
        found[rank] = max(found[rank], size)
    assert found == wanted
