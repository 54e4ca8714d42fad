"""A stage's output that a later stage than the next one uses.

A schedule carries tensors from each stage to the next. A traced graph that wants more is refused;
tensors that are handed on from stage to stage arrive.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.compositions.harness import Program, check, check_on_processes, families
from tests.pool import Pool
from tests.reference import WIDTH
from torch import Tensor, nn
from torch.distributed.pipelining import SplitPoint, pipeline

import fullbore as fb
from fullbore.errors import ParameterError
from fullbore.pipelining import build_stage

pytestmark = [pytest.mark.torch, pytest.mark.gloo]


class Skipping(nn.Module):
    """The first layer's output is used after the third one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        out: Tensor = self.d(self.c(self.b(h)) + h)
        return out


@pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning")  # PyTorch's own code
@families
def test_refused(family: str, record_property: Callable[[str, object], None]):
    num_ranks = 4 // fb.FAMILIES[family].default_stages_per_rank
    schedule = fb.build(family, num_ranks=num_ranks, num_microbatches=4)
    points = dict.fromkeys("bcd", SplitPoint.BEGINNING)
    pipe = pipeline(Skipping(), (torch.randn(2, WIDTH),), split_spec=points)
    assert pipe.num_stages == schedule.num_stages
    for stage in range(schedule.num_stages):
        module = pipe.get_stage_module(stage)
        with pytest.raises(ParameterError, match="from stage 0 to stage 2") as caught:
            build_stage(module, stage, pipe.info(), "cpu")
    record_property("reason", str(caught.value))


class Split(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.linear(h)
        return h, h


class Through(Split):
    def forward(self, given: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        h, skipped = given
        return self.linear(h).tanh(), skipped


class Join(Split):
    def forward(self, given: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        h, skipped = given
        out: Tensor = self.linear(h) + skipped
        return out


def layers() -> list[nn.Module]:
    return [Split(), Through(), Through(), Join()]


HANDED_ON = Program(make=layers)


@families
def test_handed_on_it_arrives(family: str):
    check(HANDED_ON, family)


def test_handed_on_it_arrives_on_processes(pool: Callable[[int], Pool]):
    check_on_processes(pool, HANDED_ON)
