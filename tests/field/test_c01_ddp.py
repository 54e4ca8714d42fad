"""Field case C01: DDP around each stage, two replicas of two ranks, interleaved zero bubble."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.compositions.variants import Variant, compare, run_variants
from tests.pool import Pool
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

pytestmark = [pytest.mark.torch, pytest.mark.gloo]


def wrap(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(module, process_group=mesh.get_group("dp"))


CASE = Variant("interleaved_zero_bubble", wrap, microbatches=2)


def test_c01_replicas_hold_the_reduced_gradient(pool: Callable[[int], Pool]) -> None:
    """Elsewhere the stages after the first keep the gradients of their own replica."""
    results = pool(4).run(run_variants, {"c01": CASE})
    compare(CASE, [rank["c01"] for rank in results])
    # What they hold is the same, and not what one replica alone would hold.
    for one, other in ((0, 2), (1, 3)):
        mine, theirs = (results[rank]["c01"][0].gradients[0] for rank in (one, other))
        for stage, gradients in mine.items():
            assert all(g is not None and g.equal(theirs[stage][n]) for n, g in gradients.items())
