"""Stages wrapped in DistributedDataParallel: each replica gets the mean of all replicas' gradients,
with every family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.compositions.replicas import FAMILIES, Found, check, run_families
from tests.pool import Pool
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

Results = list[dict[str, Found]]


def wrap(module: nn.Module, mesh: DeviceMesh, **options: Any) -> nn.Module:
    return DistributedDataParallel(module, process_group=mesh.get_group("dp"), **options)


@pytest.fixture(scope="module")
def results(pool: Callable[[int], Pool]) -> Results:
    return pool(4).run(run_families, wrap)


@pytest.mark.parametrize("family", FAMILIES)
def test_works(results: Results, family: str) -> None:
    check(family, [rank[family] for rank in results])
