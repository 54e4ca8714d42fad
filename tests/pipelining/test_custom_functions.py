"""Custom functions with torch's calling convention, written for torch and written for fullbore."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.pipelining.programs import batches, layers, mean_square
from tests.pipelining.torch_style import Functions, custom
from tests.pool import Pool
from tests.reference import assert_gradients, reference
from torch import nn

import fullbore as fb
from fullbore.pipelining import PipelineStage, schedules
from fullbore.pipelining.schedules import get_schedule_class

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

THEIRS, OURS = "torch.distributed.pipelining", "fullbore.pipelining"
FAMILY = {
    "Interleaved1F1B": "interleaved_1f1b",
    "ZBVZeroBubble": "zbv_zero_bubble",
    "DualPipeV": "dualpipev",
}
KINDS = [
    ("Interleaved1F1B", ("F", "B")),
    ("ZBVZeroBubble", ("F", "I", "W")),
    ("DualPipeV", ("OVERLAP_F_B",)),
    ("DualPipeV", ("F", "B", "I", "W")),
    ("DualPipeV", ("F", "B", "I", "W", "OVERLAP_F_B", "REDUCE_GRAD")),
]


def local(name: str, modules: list[nn.Module], **options: Any) -> Any:
    stages = [PipelineStage(m, i, len(modules), "cpu") for i, m in enumerate(modules)]
    return get_schedule_class(name)(stages, 4, loss_fn=mean_square, **options)


def check(name: str, modules: list[nn.Module], step: Callable[..., Any]) -> None:
    """``step(x, target=y)`` leaves the reference's gradients."""
    x, y = batches(1)[0]
    parts = [(part,) for part in x.tensor_split(4)]
    wanted = reference(modules, parts, y.tensor_split(4), weights=[0.25] * 4, loss_fn=mean_square)
    losses: list[torch.Tensor] = []
    step(x, target=y, losses=losses)
    assert all(map(torch.equal, losses, wanted.losses))
    plan = fb.build(FAMILY[name], num_ranks=2, num_microbatches=4)
    assert_gradients(modules, wanted.gradients, plan)


@pytest.mark.parametrize(("name", "kinds"), KINDS)
def test_functions_for_torch_in_one_process(name: str, kinds: tuple[str, ...]):
    modules = layers(4)
    schedule, functions = local(name, modules), Functions(schedules)
    functions.register(schedule, *kinds)
    check(name, modules, schedule.step)
    assert len(functions.calls) > 4
    before = len(functions.calls)
    schedule.eval(batches(1)[0][0])
    assert (len(functions.calls) > before) == ("F" in kinds)


@pytest.mark.parametrize(("name", "kinds"), [KINDS[1], KINDS[2], KINDS[3]])
def test_functions_for_torch_do_the_same_in_both(
    pool: Callable[[int], Pool], name: str, kinds: tuple[str, ...]
):
    found, wanted = (pool(2).run(custom, api, name, kinds) for api in (OURS, THEIRS))
    for (values, calls), (theirs, their_calls) in zip(found, wanted, strict=True):
        assert len(values) == len(theirs) >= 8
        assert all(map(torch.equal, values, theirs))
        # Here, a function for F is also called for the F in an overlap.
        assert calls == their_calls or (calls > their_calls and name == "DualPipeV")


@pytest.mark.parametrize("name", list(FAMILY))
def test_functions_for_fullbore(name: str):
    calls: list[str] = []

    def forward(action: Any, ctx: Any) -> None:
        calls.append(str(action))
        assert ctx.schedule_ref is schedule
        assert ctx.losses is kept
        assert len(ctx.arg_mbs) == len(ctx.kwarg_mbs) == len(ctx.target_mbs) == 4
        ctx.deliver_output(ctx.stage.module(*ctx.args, **ctx.kwargs))

    def backward(action: Any, ctx: Any) -> None:
        calls.append(str(action))
        torch.autograd.backward(ctx.outputs, ctx.output_gradients, retain_graph=True)

    def run(action: Any, ctx: Any) -> None:
        calls.append(str(action))
        ctx.run()

    kept: list[torch.Tensor] = []
    modules = layers(4)
    schedule = local(name, modules)
    for kind, function in {"F": forward, "B": backward, "I": run, "W": run}.items():
        schedule.register_custom_function(kind, function)

    def step(x: Any, target: Any, losses: list[torch.Tensor]) -> None:
        schedule.step(x, target=target, losses=kept)
        losses += kept

    check(name, modules, step)
    assert len(calls) >= 32


def test_the_parts_of_an_overlap_run_at_once():
    modules = layers(4)
    schedule = local("DualPipeV", modules)
    with ThreadPoolExecutor(max_workers=1) as helper:

        def overlap(action: Any, ctx: Any) -> None:
            forward, backward = ctx.parts
            assert [str(part) for part in action.sub_actions] == [
                str(forward.action),
                str(backward.action),
            ]
            running = helper.submit(forward.run)
            backward.run()
            running.result()

        schedule.register_custom_function(schedules.OVERLAP_F_B, overlap)
        check("DualPipeV", modules, schedule.step)


def test_kinds():
    schedule = local("ZBVZeroBubble", layers(4))
    for kind in (schedules.SEND_F, "RECV_B", "NOTHING", 3):
        with pytest.raises(ValueError, match="Invalid computation type"):
            schedule.register_custom_function(kind, print)
    schedule.register_custom_function(schedules.FORWARD, lambda action, ctx: ctx.run())
    with pytest.warns(UserWarning, match="F is replaced"):
        schedule.register_custom_function("F", lambda action, ctx: 1 / 0)
    x, y = batches(1)[0]
    with pytest.raises(ZeroDivisionError):
        schedule.step(x, target=y)


def _forward(ctx: Any, action: Any) -> Any:
    stage = {s.stage_index: s for s in ctx.schedule_ref._stages}[action.stage_index]
    return stage, stage.forward_one_chunk(action.microbatch_index, ctx.arg_mbs[0], {})


REFUSED: list[tuple[str, Callable[[Any, Any], Any], str]] = [
    ("F", lambda a, ctx: ctx.schedule_ref._internal_losses.append(1), "_internal_losses"),
    ("F", lambda a, ctx: ctx.schedule_ref.unshard_ops, "ctx.run"),
    ("F", lambda a, ctx: ctx.schedule_ref._stages[0].fwd_cache, "ctx.deliver_output"),
    ("B", lambda a, ctx: ctx.schedule_ref._stages[0].bwd_cache, "ctx.deliver_gradients"),
    ("F", lambda a, ctx: ctx.schedule_ref.fwd_recv_ops.pop((3, 3)), "not received by message"),
    ("F", lambda a, ctx: ctx.schedule_ref._stages[3].forward_one_chunk(3, ()), "3F3 is not being"),
    ("B", lambda a, ctx: ctx.schedule_ref._stages[3].backward_one_chunk(0, loss=3), "another loss"),
    (
        "B",
        lambda a, ctx: ctx.schedule_ref._stages[3].backward_one_chunk(0, full_backward=False),
        "3I0",
    ),
    ("B", lambda a, ctx: ctx.schedule_ref._stages[2].set_local_bwd_input((1,), 0), "get_local_bwd"),
    (
        "F",
        lambda a, ctx: ctx.schedule_ref._stages[1].set_local_fwd_input(_forward(ctx, a)[1] + 1, 0),
        "another output",
    ),
    ("F", lambda a, ctx: None, "delivered no output"),
]


@pytest.mark.parametrize(("kind", "body", "message"), REFUSED)
def test_what_cannot_be_served_is_refused_by_name(kind: str, body: Any, message: str):
    schedule = local("Interleaved1F1B", layers(4))
    schedule.register_custom_function(kind, body)
    x, y = batches(1)[0]
    with pytest.raises((ValueError, AttributeError), match=message):
        schedule.step(x, target=y)


def test_other_arguments_than_the_microbatch():
    """A function may change what its stage is called with."""
    modules = layers(4)
    schedule = local("Interleaved1F1B", modules)

    def doubled(action: Any, ctx: Any) -> None:
        index, mb = action.stage_index, action.microbatch_index
        args = tuple(2 * a for a in ctx.arg_mbs[mb]) if index == 0 else ()
        ctx.schedule_ref._stages[index].forward_one_chunk(mb, args, ctx.kwarg_mbs[mb])

    schedule.register_custom_function("F", doubled)
    check("Interleaved1F1B", modules, lambda x, **named: schedule.step(x / 2, **named))


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def total(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output * target).sum()


def test_without_autograd():
    def forward(action: Any, ctx: Any) -> None:
        ctx.state["x"] = ctx.args[0]
        ctx.deliver_output(ctx.args[0] * ctx.stage.module.weight)

    def backward(action: Any, ctx: Any) -> None:
        (gradient,), weight = ctx.output_gradients, ctx.stage.module.weight
        if ctx.loss is not None:
            gradient = gradient * ctx.target
        ours = (gradient * ctx.state["x"]).sum(0)
        weight.grad = ours if weight.grad is None else weight.grad + ours
        ctx.deliver_gradients([gradient * weight for _ in ctx.inputs])

    torch.manual_seed(0)
    modules: list[nn.Module] = [Scale() for _ in range(4)]
    x, y = batches(1)[0]
    parts = [(part,) for part in x.tensor_split(4)]
    wanted = reference(modules, parts, y.tensor_split(4), weights=[1.0] * 4, loss_fn=total)
    stages = [PipelineStage(m, i, 4, "cpu") for i, m in enumerate(modules)]
    schedule = schedules.ScheduleLoopedBFS(
        stages, 4, total, scale_grads=False, backward_requires_autograd=False
    )
    with torch.no_grad(), pytest.raises(ValueError, match="computes F, B"):
        schedule.step(x, target=y)
    schedule.register_custom_function("F", forward)
    schedule.register_custom_function("B", backward)
    with torch.no_grad():
        schedule.step(x, target=y)
    for module, named in zip(modules, wanted.gradients, strict=True):
        torch.testing.assert_close(module.get_parameter("weight").grad, named["weight"])
