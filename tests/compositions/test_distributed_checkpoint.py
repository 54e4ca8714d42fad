"""A checkpoint of torch.distributed.checkpoint, saved by one pipeline and loaded by another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.compositions.harness import (
    RANKS,
    Part,
    Program,
    even,
    families,
    loop,
    plan,
    split,
)
from tests.pool import Pool
from tests.reference import assert_same, mse
from torch import Tensor
from torch.optim import AdamW

from fullbore.runtime import (
    LocalTransport,
    P2PTransport,
    Pipeline,
    Stage,
    Transport,
    load_checkpoint,
    save_checkpoint,
)
from fullbore.verify import accumulates_in_order

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

HALF, STEPS = 2, 4


def adam(parameters: Any) -> AdamW:
    return AdamW(parameters, lr=1e-2)


PROGRAM = Program(optimizer=adam, steps=STEPS)


class Run:
    """A pipeline and its optimizer; a second one starts from other weights."""

    def __init__(self, family: str, transport: Transport, rank: int | None = None) -> None:
        schedule = plan(family)
        own = range(schedule.num_stages) if rank is None else schedule.placement.stages_of(rank)
        self.parts: dict[int, Part] = split(PROGRAM, schedule, own)
        stages = [Stage(part, s, schedule.num_stages) for s, part in self.parts.items()]
        self.pipe = Pipeline(stages, schedule, loss_fn=mse, transport=transport)
        self.optimizer = adam([p for part in self.parts.values() for p in part.parameters()])

    def train(self, steps: range) -> None:
        for step in steps:
            xs, ys = zip(*even(step), strict=True)
            self.optimizer.zero_grad()
            self.pipe.step(arg_mbs=xs, target_mbs=ys)
            self.optimizer.step()

    def spoil(self) -> None:
        with torch.no_grad():
            for part in self.parts.values():
                for parameter in part.parameters():
                    parameter.fill_(7.0)

    def weights(self) -> dict[str, Tensor]:
        return {k: v for part in self.parts.values() for k, v in part.state_dict().items()}


def first_half(family: str, path: Path, transport: Transport, rank: int | None = None) -> None:
    run = Run(family, transport, rank)
    run.train(range(HALF))
    save_checkpoint(run.pipe, path, optimizers=run.optimizer, extra={"step": HALF})


def second_half(
    family: str, path: Path, transport: Transport, rank: int | None = None
) -> dict[str, Tensor]:
    run = Run(family, transport, rank)
    run.spoil()
    extra = load_checkpoint(run.pipe, path, optimizers=run.optimizer)
    run.train(range(extra["step"], STEPS))
    return run.weights()


def check(found: dict[str, Tensor], *among: str) -> None:
    exact = all(all(accumulates_in_order(plan(family))) for family in among)
    wanted = loop(PROGRAM).weights
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert_same(found[name], value, exact=exact, what=name)


@families
def test_works(family: str, tmp_path: Path):
    for other in ("gpipe", "zbv_zero_bubble"):
        first_half(family, tmp_path / f"to {other}", LocalTransport())
        check(second_half(other, tmp_path / f"to {other}", LocalTransport()), family, other)
        first_half(other, tmp_path / f"from {other}", LocalTransport())
        check(second_half(family, tmp_path / f"from {other}", LocalTransport()), family, other)


def on_rank(rank: int, size: int, function: Callable[..., Any], family: str, path: Path) -> Any:
    transport = P2PTransport(timeout=60.0)
    try:
        return function(family, path, transport, rank)
    finally:
        transport.close()


def test_works_on_processes(pool: Callable[[int], Pool], tmp_path: Path):
    path = tmp_path / "half"
    pool(RANKS).run(on_rank, first_half, "1f1b", path)
    parts = pool(RANKS).run(on_rank, second_half, "dualpipev", path)
    check({k: v for part in parts for k, v in part.items()}, "1f1b", "dualpipev")
