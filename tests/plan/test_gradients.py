"""Plans run: gradients equal those of the unpipelined model, whatever the order."""

from pathlib import Path

import pytest
import torch
from tests.reference import WIDTH, assert_gradients, linear_tanh, local_pipeline, reference

from fullbore.formats import load, save
from fullbore.plan import plan
from fullbore.sim import UniformCosts

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("ending", ["json", "csv"])
@pytest.mark.parametrize("memory", [0.5, 1.0, None])
@pytest.mark.parametrize(("shape", "count"), [("loop", 1), ("loop", 2), ("vee", 2), ("loop", 3)])
def test_a_planned_order_trains(
    shape: str, count: int, memory: float | None, ending: str, tmp_path: Path
):
    found = plan(
        num_ranks=4,
        num_microbatches=6,
        costs=UniformCosts(F=5, I=4, W=3, latency=0.4, activation_bytes=1),
        memory=None if memory is None else 4 * memory,
        stages_per_rank=(count,),
        shapes=(shape,),
        effort=1,
    )
    save(found.schedule, tmp_path / f"plan.{ending}")
    schedule = load(tmp_path / f"plan.{ending}")
    assert schedule == found.schedule
    modules = linear_tanh(schedule.num_stages)
    x, y = torch.randn(12, WIDTH), torch.randn(12, WIDTH)
    wanted = reference(
        modules, [(part,) for part in x.tensor_split(6)], y.tensor_split(6), weights=[1 / 6] * 6
    )
    local_pipeline(modules, schedule).step(x, target=y)
    assert_gradients(modules, wanted.gradients, schedule)
