"""Promises of DESIGN 4.5 that span the whole step: what is held, for how long, and what an
evaluation leaves alone."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.reference import WIDTH, linear_tanh, local_pipeline
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import fullbore as fb
from fullbore.sim import UniformCosts, memory_over_time, simulate

pytestmark = pytest.mark.torch

FAMILIES = (
    *("gpipe", "1f1b", "looped_bfs", "interleaved_1f1b"),
    *("interleaved_zero_bubble", "zbv_zero_bubble", "dualpipev"),
)


class Held(nn.Module):
    """Counts the activations that are alive: each is needed for the input's gradient and, longer,
    for that of ``second``'s weight."""

    def __init__(self, alive: list[StorageWeakRef], peaks: list[int]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.alive, self.peaks = alive, peaks

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        self.alive.append(StorageWeakRef(hidden.untyped_storage()))
        self.peaks.append(sum(not ref.expired() for ref in self.alive))
        out: Tensor = self.second(hidden)
        return out


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_peak_memory_is_what_the_simulator_says(name: str, num_ranks: int) -> None:
    plan = fb.build(name, num_ranks=num_ranks, num_microbatches=7)
    held = [([], []) for _ in range(num_ranks)]  # type: ignore[var-annotated]
    modules: list[nn.Module] = [Held(*held[rank]) for rank in plan.placement.ranks]
    pipe = local_pipeline(modules, plan)
    x = torch.randn(14, WIDTH)
    pipe.step(x, target=x)
    costs = UniformCosts(F=1, I=1, W=1, activation_bytes=plan.num_stages // num_ranks)
    levels = memory_over_time(plan, simulate(plan, costs), costs)
    wanted = [max(level.bytes for level in rank) for rank in levels]
    assert [max(peaks) for _, peaks in held] == wanted
    assert all(ref.expired() for alive, _ in held for ref in alive)


@pytest.mark.parametrize("name", FAMILIES)
def test_evaluation_leaves_training_state_alone(name: str) -> None:
    plan = fb.build(name, num_ranks=2, num_microbatches=4)
    modules = [nn.Sequential(m, nn.BatchNorm1d(WIDTH)) for m in linear_tanh(plan.num_stages)]
    pipe = local_pipeline(modules, plan)
    x = torch.randn(8, WIDTH)
    pipe.step(x, target=x)
    before = [copy.deepcopy(module.state_dict()) for module in modules]
    pipe.eval(x, target=x)
    for module, state in zip(modules, before, strict=True):
        assert all(torch.equal(value, state[key]) for key, value in module.state_dict().items())
    pipe.eval(x, keep_mode=True)
    assert int(modules[0].state_dict()["1.num_batches_tracked"]) == 8
