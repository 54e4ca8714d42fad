"""Stages of ``fully_shard``: each rank gets its part of the mean of all replicas' gradients, with
every family."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.compositions.replicas import FAMILIES, Found, check, run_families
from tests.pool import Pool
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

Results = list[dict[str, Found]]


def nested(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """The blocks first, which free their parameters after every forward, then the rest."""
    from torch.distributed.fsdp import fully_shard

    for part in module.children():
        fully_shard(part, mesh=mesh["dp"])
    fully_shard(module, mesh=mesh["dp"])
    return module


@pytest.fixture(scope="module")
def results(pool: Callable[[int], Pool]) -> Results:
    return pool(4).run(run_families, nested)


@pytest.mark.parametrize("family", FAMILIES)
def test_works(results: Results, family: str) -> None:
    check(family, [rank[family] for rank in results])
