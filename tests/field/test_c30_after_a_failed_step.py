"""C30: a step fails by the user's exception, the next one is good."""

from functools import partial

import pytest
import torch
from tests.reference import assert_gradients, linear_tanh, local_pipeline, mse, reference
from tests.runtime.faults import scenes
from tests.runtime.faults.harness import Clock, Kind, Setting, play
from tests.runtime.faults.scenes import MICROBATCHES, Fault
from torch import Tensor

import fullbore as fb
from fullbore.runtime import Transport

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

FAMILIES = ["1f1b", "gpipe", "interleaved_zero_bubble", "zbv_zero_bubble", "dualpipev"]


def check_good_step(pipe, module, transport: Transport, rank: int, size: int) -> None:
    """Its losses are its own, and its gradients the reference's."""
    x, y = scenes.batch()
    module.zero_grad()
    out = pipe.step(2 * x, target=y)
    modules = linear_tanh(size)
    parts = [(part,) for part in (2 * x).tensor_split(MICROBATCHES)]
    wanted = reference(
        modules, parts, y.tensor_split(MICROBATCHES), weights=[1 / MICROBATCHES] * MICROBATCHES
    )
    assert_gradients([module.module], wanted.gradients, pipe.schedule, [rank])
    if out.losses is not None:
        assert all(map(torch.equal, out.losses, wanted.losses))


def fail_and_go_on(fault: Fault, transport: Transport, rank: int, clock: Clock) -> None:
    pipe, module = scenes.make(transport, rank, 3, clock, fault)
    x, y = scenes.batch()
    module.is_armed = True
    clock.call(lambda: pipe.step(x, target=y))
    module.is_armed = False
    if clock.texts == ["fine"]:
        clock.call(lambda: pipe.step(x, target=y))
    pipe.realign()
    clock.call(lambda: check_good_step(pipe, module, transport, rank, 3))


@pytest.mark.parametrize(
    "fault", [Fault("raise", 1), Fault("raise", 1, "B", 0), Fault("raise", 2, "loss")], ids=str
)
@pytest.mark.parametrize("kind", ["shm", "p2p"])
def test_c30_the_next_step_is_right(kind: Kind, fault: Fault) -> None:
    for one in play(partial(fail_and_go_on, fault), Setting(kind, 3)):
        assert one.texts is not None
        assert "boom" in one.texts[-2]
        assert one.texts[-1] == "fine"


@pytest.mark.parametrize("name", FAMILIES)
def test_c30_the_next_step_is_right_in_one_process(name: str) -> None:
    plan = fb.build(name, num_ranks=2, num_microbatches=MICROBATCHES)
    modules, calls = linear_tanh(plan.num_stages), []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise ValueError("boom")
        return mse(output, target)

    pipe = local_pipeline(modules, plan, loss_fn=loss)
    x, y = scenes.batch()
    with pytest.raises(ValueError, match="boom"):
        pipe.step(x, target=y)
    for module in modules:
        module.zero_grad()
    out = pipe.step(x, target=y)
    parts = [(part,) for part in x.tensor_split(MICROBATCHES)]
    wanted = reference(
        modules, parts, y.tensor_split(MICROBATCHES), weights=[1 / MICROBATCHES] * MICROBATCHES
    )
    assert out.losses is not None
    assert len(out.losses) == MICROBATCHES
    assert all(map(torch.equal, out.losses, wanted.losses))
    assert_gradients(modules, wanted.gradients, plan)
