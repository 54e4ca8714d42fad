"""A step run action by action is the step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.reference import WIDTH, assert_same, gradients, linear_tanh, local_pipeline, mse
from torch import Tensor, nn

import fullbore as fb
from fullbore.errors import ParameterError
from fullbore.ir import Schedule
from fullbore.runtime import Pipeline, Stage, Transport
from fullbore.runtime.intake import Given
from fullbore.runtime.launch import launch
from fullbore.runtime.walk import Walk

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

FAMILIES = [("1f1b", 1), ("interleaved_zero_bubble", 2), ("zbv_zero_bubble", 2), ("dualpipev", 2)]


def plan(name: str, stages_per_rank: int) -> Schedule:
    compute = fb.build(name, num_ranks=2, num_microbatches=4, stages_per_rank=stages_per_rank)
    return fb.lower(compute, batch=True)


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(8, WIDTH), torch.randn(8, WIDTH)


def walk_all(pipe: Pipeline, walk: Walk) -> None:
    order = fb.ir.executable_order(pipe.schedule).steps
    for rank, step in order:
        if rank in pipe.ranks:
            walk.run(rank, step)


@pytest.mark.parametrize(("name", "stages_per_rank"), FAMILIES)
def test_all_actions_one_by_one_are_a_step(name: str, stages_per_rank: int) -> None:
    schedule, (x, y) = plan(name, stages_per_rank), batch()
    modules = linear_tanh(schedule.num_stages)
    pipe = local_pipeline(modules, schedule)
    wanted = pipe.step(x, target=y, return_outputs=True)
    by_step = gradients(modules)
    for module in modules:
        module.zero_grad()

    walk = pipe.walk(Given((x,), target=y, return_outputs=True))
    with torch.no_grad():  # what surrounds an action does not matter
        walk_all(pipe, walk)
    out = walk.finish()

    assert out.losses is not None
    assert wanted.losses is not None
    assert all(map(torch.equal, out.losses, wanted.losses))
    assert torch.equal(out.output, wanted.output)
    for found, want in zip(gradients(modules), by_step, strict=True):
        for parameter, gradient in found.items():
            assert_same(gradient, want[parameter], exact=True, what=parameter)
    assert pipe.step(x, target=y).losses is not None


def over_two_ranks(transport: Transport, rank: int, name: str, stages_per_rank: int) -> Any:
    schedule, (x, y) = plan(name, stages_per_rank), batch()
    modules = linear_tanh(schedule.num_stages)
    own = schedule.placement.stages_of(rank)
    stages = [Stage(modules[s], s, schedule.num_stages) for s in own]
    pipe = Pipeline(stages, schedule, loss_fn=mse, transport=transport)
    pipe.step(x, target=y)
    by_step = gradients(modules)
    pipe.walk(Given((x,), target=y)).abandon()
    for module in modules:
        module.zero_grad()
    walk = pipe.walk(Given((x,), target=y))
    walk_all(pipe, walk)
    walk.finish()
    return by_step, gradients(modules)


def test_over_shared_memory_also_after_a_step_that_was_abandoned() -> None:
    for by_step, found in launch(over_two_ranks, 2, transport="shm", args=FAMILIES[1]):
        for a, b in zip(by_step, found, strict=True):
            assert a.keys() == b.keys()
            for parameter, gradient in a.items():
                assert_same(b[parameter], gradient, exact=True, what=parameter)


def place_of(schedule: Schedule, text: str) -> tuple[int, int]:
    return next((rank, step) for rank, step, a in schedule.actions() if str(a) == text)


def test_what_the_actions_work_with_can_be_looked_at() -> None:
    schedule, (x, y) = fb.lower(fb.build("gpipe", num_ranks=2, num_microbatches=2)), batch()
    modules = linear_tanh(2)
    pipe = local_pipeline(modules, schedule)
    walk = pipe.walk(Given((x,), target=y))
    walk.run(*place_of(schedule, "0F0"))
    first = x.split(4)[0]
    (seen,) = walk.seen.inputs[0, 0]
    assert torch.equal(seen, first)
    between = walk.seen.outputs[0, 0]
    assert torch.equal(between, modules[0](first))
    assert not between.requires_grad
    assert not walk.seen.input_gradients
    for rank, step in fb.ir.executable_order(schedule).steps:
        if (rank, step) != place_of(schedule, "0F0"):
            walk.run(rank, step)
    leaf = between.clone().requires_grad_()
    loss = mse(modules[1](leaf), y.split(4)[0])
    (wanted,) = torch.autograd.grad(loss / 2, leaf)
    assert torch.equal(walk.losses[0], loss.detach())
    for found in (walk.seen.input_gradients[1, 0], walk.seen.output_gradients[0, 0]):
        assert_same(found[0], wanted, exact=True, what="gradient between the stages")
    assert_same(walk.seen.output_gradients[1, 1][0], torch.tensor(0.5), exact=True, what="weight")
    assert walk.seen.input_gradients[0, 0] == ()
    worker = walk.seen
    walk.finish()
    assert not worker.outputs


def test_what_a_walk_refuses() -> None:
    schedule, (x, y) = fb.lower(fb.build("gpipe", num_ranks=2, num_microbatches=2)), batch()
    pipe = local_pipeline(linear_tanh(2), schedule)
    walk = pipe.walk(Given((x,), target=y))
    walk.run(0, 0)
    with pytest.raises(ParameterError, match="was run"):
        walk.run(0, 0)
    with pytest.raises(ParameterError, match="not to be run here"):
        walk.run(2, 0)
    with pytest.raises(ParameterError, match=r"\d+ actions are not run yet"):
        walk.finish()
    with pytest.raises(ParameterError, match="while one of them runs"):
        pipe.step(x, target=y)
    walk.abandon()
    walk.abandon()
    for call in (lambda: walk.run(0, 1), walk.finish):
        with pytest.raises(ParameterError, match="over"):
            call()
    assert pipe.step(x, target=y).losses is not None


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("the model is broken")


def test_what_an_action_raises_ends_the_walk(caplog: pytest.LogCaptureFixture) -> None:
    schedule, (x, y) = fb.lower(fb.build("gpipe", num_ranks=2, num_microbatches=2)), batch()
    modules = linear_tanh(1)
    pipe = local_pipeline([*modules, Broken()], schedule)
    walk = pipe.walk(Given((x,), target=y))
    for text in ("0F0", "0SEND_F0", "1RECV_F0"):
        walk.run(*place_of(schedule, text))
    with pytest.raises(RuntimeError, match="the model is broken") as caught:
        walk.run(*place_of(schedule, "1F0"))
    assert caught.value.__notes__ == ["rank 1, stage 1, action 1F0"]
    assert "rank 1 failed at 1F0" in caplog.text
    with pytest.raises(ParameterError, match="over"):
        walk.run(0, 2)
    with pytest.raises(RuntimeError, match="the model is broken"):
        pipe.step(x, target=y)
    caplog.clear()
    pipe.walk(Given((x,), target=y)).abandon()
    assert caplog.text == ""
