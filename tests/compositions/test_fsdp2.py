"""Stages of ``fully_shard``: each rank gets its part of the mean of all replicas' gradients, with
every family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.compositions.replicas import FAMILIES, Block, Found, check, run_families
from tests.compositions.variants import Compared, Variant, compare, run_hybrid, run_variants
from tests.pool import Pool
from tests.reference import WIDTH
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import checkpoint

pytestmark = [pytest.mark.torch, pytest.mark.gloo]


def shard(module: nn.Module, mesh: DeviceMesh, **options: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    fully_shard(module, mesh=mesh["dp"], **options)
    return module


def nested(module: nn.Module, mesh: DeviceMesh, **options: Any) -> nn.Module:
    """The blocks first, which free their parameters after every forward, then the rest."""
    for part in module.children():
        shard(part, mesh, **options)
    return shard(module, mesh, **options)


def kept(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return nested(module, mesh, reshard_after_forward=False)


def freed(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return nested(module, mesh, reshard_after_forward=True)


def only_blocks(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """No root around them; the linear layer is every replica's own, and frozen."""
    for part in module.children():
        if isinstance(part, Block):
            shard(part, mesh)
        else:
            part.requires_grad_(requires_grad=False)
    return module


def narrow(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return nested(module, mesh, mp_policy=policy)


def replicated(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """The same machinery, with whole parameters on every replica."""
    from torch.distributed._composable.replicate_with_fsdp import replicate

    for part in module.children():
        replicate(part, mesh=mesh["dp"])
    replicate(module, mesh=mesh["dp"])
    return module


def on_one_rank(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """The other rank's stages are plain, and every replica's own."""
    return module if mesh.get_local_rank("pp") == 0 else nested(module, mesh)


def hybrid(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for part in module.children():
        fully_shard(part, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module


def share_streams(modules: list[nn.Module]) -> None:
    from torch.distributed.fsdp import share_comm_ctx

    share_comm_ctx(modules)  # type: ignore[arg-type] # torch names the class that it adds


class Checkpointed(nn.Sequential):
    """Recomputes its blocks in backward."""

    def forward(self, h: Tensor) -> Tensor:
        for part in self:
            h = checkpoint(part, h, use_reentrant=False)
        return h


def checkpointed(num_stages: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [Checkpointed(Block(), Block()) for _ in range(num_stages)]


class LowRank(nn.Module):
    """The gradients of the two factors need each other's values, in W."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH)
        self.base.requires_grad_(requires_grad=False)
        self.up, self.down = (nn.Parameter(torch.randn(s)) for s in ((WIDTH, 2), (2, WIDTH)))
        self.unused = nn.Parameter(torch.randn(WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        return F.linear(h, self.base.weight + self.up @ self.down, self.base.bias).tanh()


def low_rank(num_stages: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(LowRank(), nn.LayerNorm(WIDTH), LowRank()) for _ in range(num_stages)]


VARIANTS = {
    "one root": Variant("zbv_zero_bubble", shard),
    "blocks without a root": Variant("interleaved_zero_bubble", only_blocks),
    "kept after forward": Variant("interleaved_zero_bubble", kept),
    "freed after forward": Variant("zbv_zero_bubble", freed),
    "computed in bfloat16, split": Variant("interleaved_zero_bubble", narrow, syncs=(True, True)),
    "computed in bfloat16, whole": Variant("interleaved_1f1b", narrow),
    "replicate": Variant("dualpipev", replicated, syncs=(True, True)),
    "checkpointed": Variant("interleaved_zero_bubble", nested, checkpointed),
    "low rank": Variant("zbv_zero_bubble", nested, low_rank),
    "one stage at a time": Variant(
        "interleaved_zero_bubble", nested, stages_per_rank=3, options={"max_active_stages": 1}
    ),
    "no lookahead": Variant("interleaved_1f1b", nested, options={"lookahead": 1}),
    "lowered without": Variant("interleaved_zero_bubble", nested, lowered={}, syncs=(True, True)),
    "reduced, not gathered": Variant("zbv_zero_bubble", nested, lowered={"reduce_grad": True}),
    "two steps, one reduction": Variant("zbv_zero_bubble", nested, syncs=(False, True)),
    "on one rank": Variant("interleaved_zero_bubble", on_one_rank, syncs=(True, True)),
    "shared streams": Variant("interleaved_zero_bubble", freed, together=share_streams),
    "trained": Variant("zbv_zero_bubble", nested, syncs=(True,) * 3, rate=0.3),
}

HYBRID = {
    "shards and copies": Variant("interleaved_zero_bubble", hybrid, syncs=(True, True)),
    "shards and copies, one reduction": Variant("zbv_zero_bubble", hybrid, syncs=(False, True)),
}


@pytest.fixture(scope="module")
def results(pool: Callable[[int], Pool]) -> list[dict[str, Found]]:
    return pool(4).run(run_families, nested)


@pytest.mark.parametrize("family", FAMILIES)
def test_works(results: list[dict[str, Found]], family: str) -> None:
    check(family, [rank[family] for rank in results])


@pytest.fixture(scope="module")
def compared(pool: Callable[[int], Pool]) -> list[Compared]:
    return pool(4).run(run_variants, VARIANTS)


@pytest.mark.parametrize("name", VARIANTS)
def test_like_a_plain_loop(compared: list[Compared], name: str) -> None:
    compare(VARIANTS[name], [rank[name] for rank in compared])


@pytest.fixture(scope="module")
def compared_hybrid(pool: Callable[[int], Pool]) -> list[Compared]:
    return pool(4).run(run_hybrid, HYBRID)


@pytest.mark.parametrize("name", HYBRID)
def test_with_copies_like_a_plain_loop(compared_hybrid: list[Compared], name: str) -> None:
    compare(HYBRID[name], [rank[name] for rank in compared_hybrid])
