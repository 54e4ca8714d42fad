"""Dropout with seeds: the same masks however the model is split, also when recomputed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.compositions.harness import (
    COUNT,
    LAYERS,
    Program,
    check,
    check_on_processes,
    families,
    loop,
    plan,
    split,
)
from tests.pool import Pool
from tests.reference import WIDTH, local_pipeline
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fullbore.errors import ParameterError
from fullbore.ir import Action
from fullbore.runtime import ActionContext, seeded

pytestmark = [pytest.mark.torch, pytest.mark.gloo]


class Recomputed(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.body, h, use_reentrant=False)
        return out


def block(index: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), seeded(nn.Dropout(0.5), f"{index}.first"), nn.Tanh()
    )


def layers() -> list[nn.Module]:
    return [block(i) for i in range(LAYERS)]


def recomputed() -> list[nn.Module]:
    return [Recomputed(block(i)) for i in range(LAYERS)]


PLAIN = Program(make=layers, seeds=True)
AGAIN = Program(make=recomputed, seeds=True)


@families
def test_works(family: str):
    check(PLAIN, family)
    check(AGAIN, family)


def test_works_on_processes(pool: Callable[[int], Pool]):
    check_on_processes(pool, PLAIN)
    check_on_processes(pool, AGAIN)


def in_threads(action: Action, context: ActionContext) -> None:
    with ThreadPoolExecutor(2) as threads:
        for future in [threads.submit(part.run) for part in context.parts]:
            future.result()


def one_by_one(action: Action, context: ActionContext) -> None:
    for part in context.parts:
        part.run()


def test_parts_of_an_overlap_may_not_run_in_threads():
    schedule = plan("dualpipev")
    modules = [*split(PLAIN, schedule, range(schedule.num_stages)).values()]
    pipe = local_pipeline(modules, schedule)
    pipe.register_custom_function("OVERLAP_F_B", one_by_one)
    x = torch.randn(2 * COUNT, WIDTH)
    pipe.step(x, target=x, seed=1)
    with pytest.warns(UserWarning, match="replaced"):
        pipe.register_custom_function("OVERLAP_F_B", in_threads)
    with pytest.raises(ParameterError, match="on one thread"):
        pipe.step(x, target=x, seed=1)


def test_recomputation_and_another_state_of_the_generator_change_nothing():
    plain, again = loop(PLAIN), loop(AGAIN)
    for found, wanted in zip(again.losses, plain.losses, strict=True):
        assert found is not None
        assert wanted is not None
        assert all(map(torch.equal, found, wanted))
