"""What ``step`` and ``eval`` take, give and refuse."""

from typing import Any

import pytest
import torch
from tests.pipelining.local import MULTI, make, spec, stages
from tests.pipelining.programs import batches, layers, mean_square
from tests.reference import apply, gradients, reference
from torch import Tensor, nn

from fullbore.pipelining.microbatch import sum_reducer
from fullbore.pipelining.schedules import (
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
    _Action,
    _PipelineScheduleRuntime,
    _ScheduleForwardOnly,
)
from fullbore.runtime import clip_grad_norm_

pytestmark = pytest.mark.torch


def test_outputs_are_merged_as_specified():
    class Both(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x.sum()

    modules = [*layers(1), Both()]
    schedule = ScheduleLoopedBFS(
        stages(modules), 4, lambda o, t: mean_square(o[0], t), (spec(0), sum_reducer)
    )
    x, y = batches(1)[0]
    rows, total = schedule.step(x, target=y)
    torch.testing.assert_close(rows, modules[0](x))
    torch.testing.assert_close(total, modules[0](x).sum())
    assert schedule.step(x, target=y, return_outputs=False) is None


def test_chunk_specs():
    class Turned(nn.Module):
        def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
            assert scale.shape == (8,)
            return x.T * scale

    schedule = ScheduleInterleaved1F1B(
        stages([Turned(), nn.Linear(8, 8)]),
        4,
        args_chunk_spec=(spec(1),),
        kwargs_chunk_spec=None,
    )
    x = batches(1)[0][0]
    mbs = [{"scale": torch.ones(8)}] * 4
    schedule = ScheduleInterleaved1F1B(stages([Turned()]), 4, args_chunk_spec=(spec(1),))
    assert torch.equal(schedule.step(x.T.contiguous(), scale=torch.ones(32)), x)
    assert torch.equal(schedule.step(arg_mbs=[(p.T,) for p in x.split(2)], kwarg_mbs=mbs), x)


# --- steps


def test_without_a_loss_function_steps_run_forward_only():
    modules = layers(4)
    schedule = make("ZBVZeroBubble", modules=modules, loss_fn=None)
    x, _ = batches(1)[0]
    output = schedule.step(x)
    torch.testing.assert_close(output, apply(modules, x))
    assert all(p.grad is None for m in modules for p in m.parameters())
    forward = _ScheduleForwardOnly(stages(layers(1))[0], 4, mean_square)
    losses: list[Tensor] = []
    forward.step(x, target=x, losses=losses)
    assert len(losses) == 4


@pytest.mark.parametrize("name", MULTI)
def test_evaluation_touches_nothing(name: str):
    modules = layers(4)
    modules[1].append(nn.BatchNorm1d(8))  # type: ignore[operator]
    schedule = make(name, modules=modules)
    x, y = batches(1)[0]
    schedule.step(x, target=y)
    before = gradients(modules)
    losses: list[Tensor] = []
    modules[2].eval()
    output = schedule.eval(x, target=y, losses=losses)
    assert not output.requires_grad
    assert len(losses) == 4
    assert schedule.eval(x, target=y, return_outputs=False) is None
    for one, other in zip(before, gradients(modules), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert [module.training for module in modules] == [True, True, False, True]


def test_losses_belong_to_their_microbatch():
    order = {0: [_Action.from_str(t) for t in ("0F1", "0F0", "0B1", "0B0")]}
    (module,) = layers(1)
    schedule = _PipelineScheduleRuntime(stages([module]), 2, mean_square)
    schedule._prepare_schedule_with_comms(order)
    x, y = batches(1, rows=2)[0]
    losses: list[Any] = ["stale"]
    output = schedule.step(x, target=y, losses=losses)
    torch.testing.assert_close(output, module(x))
    torch.testing.assert_close(losses, [mean_square(module(x[m]), y[m]).detach() for m in (0, 1)])


def test_uneven_microbatches_weigh_their_rows():
    modules = layers(2)
    x, y = batches(1, rows=7)[0]
    ScheduleInterleaved1F1B(stages(modules), 3, mean_square).step(x, target=y)
    found = gradients(modules)
    for module in modules:
        module.zero_grad()
    mean_square(apply(modules, x), y).backward()
    for one, other in zip(found, gradients(modules), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("scale", [True, False])
def test_scale_grads(scale: bool):
    modules = layers(2)
    schedule = ScheduleInterleaved1F1B(stages(modules), 4, mean_square, scale_grads=scale)
    x, y = batches(1)[0]
    parts = [(part,) for part in x.tensor_split(4)]
    weights = [0.25 if scale else 1.0] * 4
    wanted = reference(modules, parts, y.tensor_split(4), weights=weights)
    schedule.step(arg_mbs=parts, target_mbs=list(y.tensor_split(4)))
    for one, other in zip(gradients(modules), wanted.gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_microbatches_of_newer_torch():
    """Bare tensors, no keyword arguments for some, and the private method of older programs."""
    schedule, (x, y) = make("LoopedBFS"), batches(1)[0]
    parts, targets = list(x.split(2)), list(y.split(2))
    whole = schedule.eval(x)
    assert torch.equal(schedule.step(arg_mbs=parts, target_mbs=targets), whole)
    named: list[Any] = [None, {}, None, {}]
    assert torch.equal(schedule.eval(arg_mbs=parts, kwarg_mbs=named), whole)
    losses: list[Tensor] = []
    schedule._step_microbatches([[p] for p in parts], None, targets, losses)
    assert len(losses) == 4


X, Y = torch.zeros(8, 8), torch.zeros(8, 8)
STEPS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"arg_mbs": ((X,),) * 4}, TypeError, "arg_mbs: a list is needed, not a tuple"),
    ({"kwarg_mbs": {}}, TypeError, "kwarg_mbs: a list is needed"),
    ({"target_mbs": Y}, TypeError, "target_mbs: a list is needed"),
    ({"arg_mbs": [(X,)] * 3}, ValueError, "arg_mbs: 4 microbatches are needed, and 3 given"),
    ({"x": X, "arg_mbs": [(X,)] * 4}, ValueError, "either a whole batch"),
    ({"target": Y, "target_mbs": [Y] * 4}, ValueError, "either a whole batch"),
    ({"x": X[:3], "target": Y}, ValueError, "gives 3 microbatches instead of 4"),
    ({"x": X, "target": Y[:3]}, ValueError, "4 microbatches need as many"),
    (
        {"x": X, "target": Y, "losses": ()},
        TypeError,
        "losses: a list is needed to be filled, not a tuple",
    ),
    ({"x": X, "losses": []}, RuntimeError, "losses can only be filled"),
    ({"x": X}, ValueError, "needs a target"),
    ({"target": Y}, TypeError, "missing 1 required positional argument"),
]


@pytest.mark.parametrize(("given", "kind", "message"), STEPS)
def test_steps_that_are_refused(given: dict[str, Any], kind: type[Exception], message: str):
    schedule, named = make("Interleaved1F1B"), dict(given)
    args = [named.pop("x")] if "x" in named else []
    with pytest.raises(kind, match=message):
        schedule.step(*args, **named)
    schedule.step(X, target=Y)  # the next one is good


def test_gradients_that_are_switched_off():
    single = ScheduleGPipe(stages(layers(1))[0], 4, mean_square)
    for schedule in (single, make("ZBVZeroBubble")):
        with torch.no_grad(), pytest.raises(RuntimeError, match="call eval"):
            schedule.step(X, target=Y)
        with torch.no_grad():
            schedule.eval(X, target=Y)


def test_clipping_by_the_norm_of_all_stages():
    modules = layers(4)
    schedule = make("LoopedBFS", modules=modules)
    schedule.step(*batches(1)[0][:1], target=batches(1)[0][1])
    parameters = [p for module in modules for p in module.parameters()]
    wanted = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    found = clip_grad_norm_(parameters, 1e-3, pipeline=schedule.pipeline)
    torch.testing.assert_close(found, wanted)


def test_loss_arguments():
    def loss(output: Tensor, target: Tensor, *, by: float = 1.0) -> Tensor:
        return mean_square(output, target) * by

    schedule = make("LoopedBFS", loss_fn=loss)
    found: list[list[Tensor]] = [[], []]
    x, y = batches(1)[0]
    schedule.step(x, target=y, losses=found[0], loss_kwargs={"by": 3.0})
    schedule.eval(x, target=y, losses=found[1])
    torch.testing.assert_close(found[0], [3 * loss for loss in found[1]])
