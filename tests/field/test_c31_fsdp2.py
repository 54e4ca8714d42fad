"""Field case C31: FSDP2 on gloo, two replicas of two ranks, families of several stages a rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.compositions.replicas import FAMILIES, Found, check, run_families
from tests.pool import Pool
from tests.reference import linear_tanh
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

SEVERAL = [family for family in FAMILIES if family not in ("gpipe", "1f1b")]


def shard(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    fully_shard(module, mesh=mesh["dp"])
    return module


@pytest.fixture(scope="module")
def results(pool: Callable[[int], Pool]) -> list[dict[str, Found]]:
    return pool(4).run(run_families, shard, SEVERAL, linear_tanh)


@pytest.mark.parametrize("family", SEVERAL)
def test_c31_equals_the_reference(results: list[dict[str, Found]], family: str) -> None:
    check(family, [rank[family] for rank in results], linear_tanh)
