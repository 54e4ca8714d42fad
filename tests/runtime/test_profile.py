"""``Pipeline(profile=True)``: when each action ran."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.pool import Pool
from tests.reference import (
    WIDTH,
    assert_gradients,
    linear_tanh,
    local_pipeline,
    mse,
    reference,
)
from torch import Tensor, nn

import fullbore as fb
from fullbore.errors import ParameterError
from fullbore.ir import KINDS, Group, Kind
from fullbore.runtime import P2PTransport, Pipeline, Stage, Transport
from fullbore.runtime.collective import Gathering, with_returns
from fullbore.runtime.launch import launch
from fullbore.runtime.recorder import KEPT_STEPS
from fullbore.sim import Profile, report, spent

pytestmark = pytest.mark.torch

M = 4
FAMILIES = ["gpipe", "interleaved_1f1b", "interleaved_zero_bubble", "dualpipev"]


class Slow(nn.Linear):
    """Takes at least some milliseconds."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.004)
        return super().forward(x)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_action_of_every_step_is_noted(name: str) -> None:
    plan = fb.build(name, num_ranks=2, num_microbatches=M)
    modules = linear_tanh(plan.num_stages)
    pipe = local_pipeline(modules, plan, profile=True)
    x, y = torch.randn(2 * M, WIDTH), torch.randn(2 * M, WIDTH)
    wanted = reference(modules, [(p,) for p in x.split(2)], y.split(2), weights=[1 / M] * M)
    pipe.step(x, target=y)
    assert_gradients(modules, wanted.gradients, plan)
    pipe.eval(x)  # is not noted
    pipe.step(x, target=y)
    found = pipe.profile()
    assert len(found.steps) == 2
    for rank, samples in enumerate(found.steps[0]):
        noted = [sample.action for sample in samples]
        leaves = [leaf for action in pipe.schedule.programs[rank] for leaf in action.leaves]
        assert noted == [a for a in leaves if a.kind not in (Kind.RECV_F, Kind.RECV_B)]
        times = [t for s in samples for t in (s.start, s.ready, s.end)]
        assert times == sorted(times)
        sizes = {s.size for s in samples if s.action.kind in (Kind.SEND_F, Kind.SEND_B)}
        assert sizes == {2 * WIDTH * 4}


def test_waiting_is_told_from_computing() -> None:
    """Of two ranks one computes four times as long as the other, which waits."""
    found = two_ranks(measure, transport="shm")
    costs = found.costs().table(found.schedule.placement)
    assert costs.F[0] < 0.004 <= costs.F[1]
    fast, slow = spent(found.steps[-1])
    assert fast.receiving > slow.receiving
    assert slow.compute > fast.compute
    assert all(found.step_times()[-1] == pytest.approx(sum(rank)) for rank in (fast, slow))


def test_a_prediction_from_measured_costs() -> None:
    """No claim about how good: only that it is the makespan under these costs, in seconds."""
    found = report(two_ranks(measure, transport="shm"))
    assert found.steps == 4
    assert found.predicted > M * 0.004
    assert found.measured > M * 0.004


@pytest.mark.gloo
def test_over_a_process_group() -> None:
    found = two_ranks(measure, transport="p2p")
    assert [len(step) for step in found.steps] == [2] * 5
    assert found.costs().message_bytes == (0, 2 * WIDTH * 4)


def two_ranks(function: Any, *, transport: Any) -> Profile:
    first, second = launch(function, 2, transport=transport)
    assert first == second  # all ranks learn all
    assert isinstance(first, Profile)
    return first


def measure(transport: Transport, rank: int) -> Profile:
    plan = fb.build("1f1b", num_ranks=2, num_microbatches=M)
    module = nn.Linear(WIDTH, WIDTH) if rank == 0 else Slow(WIDTH, WIDTH)
    stage = Stage(module, rank, 2)
    pipe = Pipeline(stage, plan, transport=transport, loss_fn=mse, profile=True)
    x = torch.randn(2 * M, WIDTH)
    for _ in range(5):
        pipe.step(x, target=x)
    return pipe.profile()


def test_only_the_latest_steps_are_kept() -> None:
    pipe = local_pipeline(
        linear_tanh(2), fb.build("1f1b", num_ranks=2, num_microbatches=1), profile=True
    )
    x = torch.randn(1, WIDTH)
    for _ in range(KEPT_STEPS + 3):
        pipe.step(x, target=x)
    assert len(pipe.profile().steps) == KEPT_STEPS


def test_a_failed_step_is_not_kept() -> None:
    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        if bool((target < 0).any()):
            raise ValueError("negative")
        return mse(output, target)

    plan = fb.build("zbv", num_ranks=2, num_microbatches=M)
    pipe = local_pipeline(linear_tanh(4), plan, loss_fn=loss_fn, profile=True)
    x = torch.rand(2 * M, WIDTH)
    pipe.step(x, target=x)
    with pytest.raises(ValueError, match="negative"):
        pipe.step(x, target=-x)
    pipe.step(x, target=x)
    assert len(pipe.profile().steps) == 2


def test_an_overlap_that_a_function_runs_is_one_sample() -> None:
    plan = fb.build("dualpipev", num_ranks=2, num_microbatches=M)
    pipe = local_pipeline(linear_tanh(4), plan, profile=True)
    pipe.register_custom_function("OVERLAP_F_B", lambda action, ctx: ctx.run())
    x = torch.rand(2 * M, WIDTH)
    pipe.step(x, target=x)
    noted = [s.action for rank in pipe.profile().steps[0] for s in rank]
    compute = [a for a in noted if KINDS[a.kind].group is Group.COMPUTE]
    assert sorted(compute) == sorted(action for _, _, action in plan.actions())


def test_without_a_profile() -> None:
    pipe = local_pipeline(linear_tanh(2), fb.build("1f1b", num_ranks=2, num_microbatches=1))
    with pytest.raises(ParameterError, match="make it with profile=True"):
        pipe.profile()
    pipe = local_pipeline(
        linear_tanh(2), fb.build("1f1b", num_ranks=2, num_microbatches=1), profile=True
    )
    with pytest.raises(ParameterError, match="call step"):
        pipe.profile()


@pytest.mark.gloo
def test_clocks_of_other_hosts_are_set_right(pool: Callable[[int], Pool]) -> None:
    found = pool(4).run(skewed_clocks)
    assert found[0] == 0
    for rank, offset in enumerate(found):
        assert offset == pytest.approx(-1000 * rank, abs=0.05)


def skewed_clocks(rank: int, size: int) -> float:
    """Each rank's clock is 1000 s ahead of the one before."""
    edges = with_returns([(r, r + 1) for r in range(size - 1)])
    transport = P2PTransport()
    transport.connect(size, edges)
    found = Gathering(edges, transport).clock_offset(lambda: time.perf_counter() + 1000 * rank, 3)
    transport.close()
    return found
