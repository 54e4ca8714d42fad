"""Stages wrapped in DistributedDataParallel: each replica gets the mean of all replicas' gradients,
with every family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.compositions.replicas import FAMILIES, Block, Found, blocks, check, run_families
from tests.compositions.variants import Compared, Variant, compare, run_variants
from tests.pool import Pool
from tests.reference import WIDTH, mse
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

import fullbore as fb
from fullbore.errors import ParameterError
from fullbore.runtime import LocalTransport, Pipeline, Stage

pytestmark = [pytest.mark.torch, pytest.mark.gloo]


def wrap(module: nn.Module, mesh: DeviceMesh, **options: Any) -> nn.Module:
    return DistributedDataParallel(module, process_group=mesh.get_group("dp"), **options)


def each_block(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return nn.Sequential(*(wrap(part, mesh) for part in module.children()))


def in_many_buckets(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return wrap(module, mesh, bucket_cap_mb=0.0001)


def static(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return wrap(module, mesh, static_graph=True)


def static_once_done(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """DDP learns the graph in its first backward, which is the user's."""
    wrapped = wrap(module, mesh, static_graph=True)
    wrapped(torch.randn(3, WIDTH)).sum().backward()
    wrapped.zero_grad()
    return wrapped


def with_views(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return wrap(module, mesh, gradient_as_bucket_view=True)


def finding_unused(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return wrap(module, mesh, find_unused_parameters=True)


class Choice(nn.Module):
    """Two replicas use different parameters, one parameter is frozen, and one nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.frozen = nn.Parameter(torch.randn(WIDTH), requires_grad=False)

    def forward(self, h: Tensor) -> Tensor:
        chosen = self.first if dist.get_rank() < 2 else self.second
        out: Tensor = chosen(h + self.frozen).tanh()
        return out


def choices(num_stages: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(Choice(), Block()) for _ in range(num_stages)]


class Lookup(nn.Module):
    """An embedding whose gradient is sparse, of rows that differ between replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, WIDTH, sparse=True)

    def forward(self, h: Tensor) -> Tensor:
        rows = (h.detach().abs() * 10).long() % 50
        out: Tensor = h + self.table(rows).sum(-2)
        return out


def lookups(num_stages: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(Lookup(), Block()) for _ in range(num_stages)]


def normalized(num_stages: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(Block(), nn.BatchNorm1d(WIDTH)) for _ in range(num_stages)]


def shared(num_stages: int) -> list[nn.Module]:
    """Stages 0 and 2, which are on one rank, have a layer in common."""
    modules = blocks(num_stages)
    first, third = modules[0], modules[2]
    assert isinstance(first, nn.Sequential)
    assert isinstance(third, nn.Sequential)
    third[2] = first[2]
    return modules


VARIANTS = {
    "a wrapper a block": Variant("interleaved_zero_bubble", each_block, syncs=(True, True)),
    "many buckets": Variant("zbv_zero_bubble", in_many_buckets),
    "static graph": Variant("zbv_zero_bubble", static, syncs=(True, True), loop_wrap=wrap),
    "static graph, known": Variant("interleaved_zero_bubble", static_once_done, loop_wrap=wrap),
    "gradients are views": Variant("dualpipev", with_views, syncs=(True, True)),
    "unused": Variant("interleaved_zero_bubble", finding_unused, choices, syncs=(True, True)),
    "sparse": Variant("interleaved_zero_bubble", wrap, lookups, syncs=(True, True)),
    "batch norm": Variant("interleaved_zero_bubble", wrap, normalized, syncs=(True, True)),
    "lowered without": Variant("interleaved_zero_bubble", wrap, lowered={}),
    "lowered with": Variant("interleaved_1f1b", wrap, lowered={"reduce_grad": True}),
    "two steps, one reduction": Variant("zbv_zero_bubble", wrap, syncs=(False, True)),
    "trained": Variant("interleaved_zero_bubble", wrap, syncs=(True,) * 3, rate=0.3),
}


@pytest.fixture(scope="module")
def results(pool: Callable[[int], Pool]) -> list[dict[str, Found]]:
    return pool(4).run(run_families, wrap)


@pytest.mark.parametrize("family", FAMILIES)
def test_works(results: list[dict[str, Found]], family: str) -> None:
    check(family, [rank[family] for rank in results])


@pytest.fixture(scope="module")
def compared(pool: Callable[[int], Pool]) -> list[Compared]:
    return pool(4).run(run_variants, VARIANTS)


@pytest.mark.parametrize("name", VARIANTS)
def test_like_a_plain_loop(compared: list[Compared], name: str) -> None:
    compare(VARIANTS[name], [rank[name] for rank in compared])


LOOPED = ("interleaved_1f1b", "interleaved_zero_bubble")


@pytest.fixture(scope="module")
def results_of_shared(pool: Callable[[int], Pool]) -> list[dict[str, Found]]:
    return pool(4).run(run_families, wrap, LOOPED, shared)


@pytest.mark.parametrize("family", LOOPED)
def test_a_layer_of_two_stages(results_of_shared: list[dict[str, Found]], family: str) -> None:
    """Its gradient is complete, and may be averaged, later than that of the rest of a stage."""
    check(family, [rank[family] for rank in results_of_shared], shared, exact=False)


def tied_without_sync(rank: int, size: int) -> str:
    del size
    modules = [DistributedDataParallel(nn.Linear(WIDTH, WIDTH)) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    stages = [Stage(module, s, 2) for s, module in enumerate(modules)]
    plan = fb.build("1f1b", num_ranks=2, num_microbatches=2)
    tied = [("0.weight", "1.weight")]
    pipe = Pipeline(stages, plan, transport=LocalTransport(), loss_fn=mse, tied=tied)
    torch.manual_seed(rank)
    x = torch.randn(4, WIDTH)
    pipe.step(x, target=x)
    with modules[0].no_sync(), pytest.raises(ParameterError) as refused:
        pipe.step(x, target=x)
    return str(refused.value)


def test_tied_parameters_without_reduction_are_refused(pool: Callable[[int], Pool]) -> None:
    for text in pool(2).run(tied_without_sync):
        assert "stage 0: tied parameters cannot be trained under DDP's no_sync()" in text
