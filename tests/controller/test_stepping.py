"""A step that the script runs action by action."""

from __future__ import annotations

import doctest
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from tests.controller.cases import MICROBATCHES, data, make, wanted
from tests.reference import WIDTH, assert_gradients, linear_tanh, mse
from torch import Tensor, nn

import fullbore as fb
from fullbore.controller import PipelineParallelism
from fullbore.controller.stepping import Frontier, Stepping
from fullbore.errors import FormatError, ParameterError
from fullbore.ir import Action, Schedule
from fullbore.schedules import FAMILIES

pytestmark = pytest.mark.torch

TRAINING = [name for name in FAMILIES if name != "forward_only"]


def stages_of(family: str, num_ranks: int = 2) -> list[nn.Module]:
    return linear_tanh(num_ranks * FAMILIES[family].default_stages_per_rank)


def batched(family: str) -> Schedule:
    plan = fb.build(family, num_ranks=2, num_microbatches=MICROBATCHES)
    return fb.lower(plan, sink=True, batch=True, reduce_grad=True)


def go_on_to(stepping: Stepping, text: str) -> None:
    """Run what comes before an action, and that one."""
    assert any(str(action) == text for action in stepping)


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("family", TRAINING)
def test_action_by_action_gives_what_the_unpipelined_model_gives(
    family: str, num_ranks: int
) -> None:
    modules, (x, y) = stages_of(family, num_ranks), data()
    reference = wanted(modules, x, y)
    with make(num_ranks, modules, schedule=family, dispatch="action") as pp:
        loss = pp.run(x, y)
        assert pp.last is not None
        assert pp.last.losses is not None
        assert all(map(torch.equal, pp.last.losses, reference.losses))
        assert loss is pp.loss
        assert_gradients(modules, reference.gradients, pp.schedule)


@pytest.mark.parametrize("family", ["1f1b", "interleaved_zero_bubble", "zbv_zero_bubble"])
def test_batched_pairs_are_run_one_by_one(family: str) -> None:
    modules, (x, y) = stages_of(family), data()
    reference = wanted(modules, x, y)
    with make(2, modules, schedule=batched(family)) as pp, pp.start(x, y) as stepping:
        ran = list(stepping)
        assert any(action.parts for action in ran)
        assert sorted(map(str, ran)) == sorted(str(a) for _, _, a in pp.schedule.actions())
        stepping.finish()
        assert_gradients(modules, reference.gradients, pp.schedule)


def test_a_script_can_look_at_tensors_between_two_actions() -> None:
    modules, (x, y) = linear_tanh(2), data()
    part = x.tensor_split(MICROBATCHES)[0]
    target = y.tensor_split(MICROBATCHES)[0]
    with make(2, modules) as pp, pp.start(x, y, return_outputs=True) as stepping:
        assert list(map(str, stepping.ready)) == ["0F0"]
        with pytest.raises(ParameterError, match=r"stage 0 has no outputs of microbatch 0 \(yet\)"):
            stepping.output(0, 0)
        stepping.run("0F0")
        assert torch.equal(stepping.input(0, 0)[0], part)
        between = stepping.output(0, 0)
        assert torch.equal(between, modules[0](part))
        go_on_to(stepping, "1B0")
        leaf = between.clone().requires_grad_()
        loss = mse(modules[1](leaf), target)
        (gradient,) = torch.autograd.grad(loss / MICROBATCHES, leaf)
        assert torch.equal(stepping.losses[0], loss.detach())
        (handed_back,) = stepping.input_gradients(1, 0)
        assert handed_back is not None
        assert torch.equal(handed_back, gradient)
        go_on_to(stepping, "0B0")
        assert stepping.input_gradients(0, 0) == ()
        assert stepping.output_gradients(0, 0)[0] is not None
        total = stepping.finish()
        assert total is pp.loss
        assert pp.last is not None
        assert pp.last.output.shape == y.shape
        with pytest.raises(ParameterError, match="this step is over"):
            stepping.output(0, 0)


def test_the_caller_may_look_with_gradients_switched_off() -> None:
    modules, (x, y) = linear_tanh(2), data()
    reference = wanted(modules, x, y)
    with make(2, modules) as pp, pp.start(x, y) as stepping:
        with torch.no_grad():
            stepping.run("0F0")
            stepping.output(0, 0)
        with torch.inference_mode():
            stepping.run("0SEND_F0")
            stepping.run("1RECV_F0")
            stepping.run("1F0")
        stepping.finish()
        assert_gradients(modules, reference.gradients, pp.schedule)


@pytest.mark.parametrize(
    ("before", "action", "complaint"),
    [
        ([], "0F1", "0F1 cannot run yet: rank 0 comes to 0F0 first"),
        ([], "1RECV_F0", "1RECV_F0 needs 0SEND_F0 first"),
        (["0F0"], "0F0", "0F0 has run already"),
        ([], "0F9", "0F9 is no action of this schedule"),
        ([], "2F0", "2F0 is no action of this schedule"),
        ([], "0W0", "0W0 is no action of this schedule"),
    ],
)
def test_an_action_out_of_order_is_refused_and_nothing_happens(
    before: Sequence[str], action: str, complaint: str
) -> None:
    modules, (x, y) = linear_tanh(2), data()
    reference = wanted(modules, x, y)
    with make(2, modules) as pp, pp.start(x, y) as stepping:
        for text in before:
            stepping.run(text)
        with pytest.raises(ParameterError, match=complaint):
            stepping.run(action)
        with pytest.raises(FormatError, match="F needs a microbatch"):
            stepping.run("0F")
        stepping.finish()
        assert_gradients(modules, reference.gradients, pp.schedule)


def frontier(schedule: Schedule, *texts: str) -> Frontier:
    found = Frontier(schedule)
    for text in texts:
        action = next(a for _, _, a in schedule.actions() if str(a) == text)
        found.advance(found.find(action)[0])
    return found


def test_what_a_pair_receives_is_waited_for_by_who_uses_it() -> None:
    """Both ranks can run their halves first; nobody computes with what was not sent."""
    text = """\
0F0,0SEND_F0,0F1,(0SEND_F1;0RECV_B0)SEND_F_RECV_B,0B0,0RECV_B1,0B1
1RECV_F0,1F0,1B0,(1SEND_B0;1RECV_F1)SEND_B_RECV_F,1F1,1B1,1SEND_B1
"""
    schedule = fb.loads(text, format="csv")
    ahead = frontier(schedule, "0F0", "0SEND_F0", "0F1", "(0SEND_F1;0RECV_B0)SEND_F_RECV_B")
    backward = ahead.next_of(0)
    assert backward == Action(0, fb.Kind.B, 0)
    assert ahead.obstacle(backward) == "0B0 needs 1SEND_B0 first"
    for _ in range(4):
        ahead.advance(1)
    assert ahead.obstacle(backward) is None


def test_a_rank_does_not_run_far_ahead_of_who_receives() -> None:
    schedule = fb.lower(fb.build("gpipe", num_ranks=2, num_microbatches=20))
    found = Frontier(schedule)
    while (action := found.next_of(0)) is not None and found.obstacle(action) is None:
        found.advance(0)
    assert action is not None
    assert str(action) == "0SEND_F8"
    with pytest.raises(ParameterError, match="message 9 from rank 0 that rank 1 has no receive"):
        found.find(action)
    found.advance(1)
    found.advance(0)


@pytest.mark.parametrize("family", TRAINING)
def test_the_ranks_take_turns_in_any_way(family: str) -> None:
    modules, (x, y) = stages_of(family), data()
    reference = wanted(modules, x, y)
    random = Random(family)
    for schedule in (batched(family), fb.lower(fb.build(family, num_ranks=2, num_microbatches=4))):
        with make(2, modules, schedule=schedule) as pp, pp.start(x, y) as stepping:
            pp.zero_grad()
            while stepping.left:
                stepping.run(random.choice(stepping.ready))
            stepping.finish()
            assert_gradients(modules, reference.gradients, schedule)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_rank_waits_for_ever(family: str) -> None:
    random = Random(family)
    for num_ranks, count in ((1, 3), (3, 40), (4, 9)):
        plan = fb.build(family, num_ranks=num_ranks, num_microbatches=count)
        for options in ({}, {"sink": True, "batch": True}, {"batch": True, "shard": True}):
            schedule = fb.lower(plan, **options)
            found = Frontier(schedule)
            for _ in schedule.actions():
                heads = ((rank, found.next_of(rank)) for rank in range(num_ranks))
                ready = [r for r, a in heads if a is not None and found.obstacle(a) is None]
                found.advance(random.choice(ready))


def test_many_microbatches_run_to_the_end() -> None:
    modules, x = linear_tanh(2), torch.randn(40, WIDTH)
    with PipelineParallelism(
        2, modules, schedule="gpipe", batch_size=40, loss_fn=mse, dispatch="action"
    ) as pp:
        assert torch.isfinite(pp.run(x, x))


def test_an_abandoned_step_leaves_a_pipeline_that_goes_on() -> None:
    modules, (x, y) = linear_tanh(2), data()
    reference = wanted(modules, x, y)
    with make(2, modules) as pp:
        with pp.start(x, y) as stepping:
            go_on_to(stepping, "1B0")
            for call in (lambda: pp.run(x, y), lambda: pp.eval(x), lambda: pp.start(x, y)):
                with pytest.raises(ParameterError, match="a step is under way"):
                    call()
        assert stepping.is_over
        with pytest.raises(ParameterError, match="this step is over"):
            stepping.finish()
        assert modules[1].get_parameter("0.weight").grad is not None
        pp.zero_grad()
        pp.run(x, y)
        assert_gradients(modules, reference.gradients, pp.schedule)


class Broken(nn.Module):
    """Fails as long as it is told to."""

    fails = True

    def forward(self, x: Tensor) -> Tensor:
        if self.fails:
            raise KeyError("boom")
        return x


def test_what_an_action_raises_ends_the_step_and_not_the_pipeline() -> None:
    first, last = linear_tanh(1)[0], Broken()
    x, y = data()
    with make(2, [first, last]) as pp:
        with pp.start(x, y) as stepping, pytest.raises(KeyError, match="boom") as caught:
            list(stepping)
        assert caught.value.__notes__ == ["rank 1, stage 1, action 1F0"]
        assert stepping.is_over
        last.fails = False
        pp.zero_grad()
        assert torch.isfinite(pp.run(x, y))


def test_it_cannot_be_recovered() -> None:
    with (
        make(2, linear_tanh(2), recover=True, dispatch="action") as pp,
        pytest.raises(ParameterError, match="cannot be recovered"),
    ):
        pp.run(*data())


def test_dispatch_is_one_of_two() -> None:
    option: dict[str, Any] = {"dispatch": "tensor"}
    with pytest.raises(ParameterError, match="dispatch must be 'step' or 'action'; got 'tensor'"):
        make(2, linear_tanh(2), **option)


def test_the_page_is_true() -> None:
    page = Path(__file__).parents[2] / "docs" / "stepping.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 10
    assert failed == 0
