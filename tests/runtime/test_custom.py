"""Functions of the user's in place of the built-in ones."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.reference import WIDTH, assert_gradients, linear_tanh, local_pipeline, mse, reference
from torch import Tensor, nn

import fullbore as fb
from fullbore.errors import ParameterError
from fullbore.runtime import ActionContext, Pipeline, StepOutput

pytestmark = pytest.mark.torch

M = 4
Custom = Callable[[fb.Action, ActionContext], None]


def make(name: str, **options: Any) -> tuple[Pipeline, list[nn.Module], Any]:
    plan = fb.build(name, num_ranks=2, num_microbatches=M)
    modules = linear_tanh(plan.num_stages)
    return local_pipeline(modules, fb.lower(plan, **options)), modules, plan


def check(pipe: Pipeline, modules: list[nn.Module], plan: fb.Schedule, **kwargs: Any) -> StepOutput:
    """A step whose losses and gradients equal the unpipelined model's."""
    torch.manual_seed(1)
    x, y = torch.randn(2 * M, WIDTH), torch.randn(2 * M, WIDTH)
    parts = [(part,) for part in x.split(2)]
    wanted = reference(modules, parts, y.split(2), weights=[1 / M] * M)
    out = pipe.step(x, target=y, **kwargs)
    assert out.losses is not None
    torch.testing.assert_close(list(out.losses), wanted.losses, rtol=0, atol=0)
    assert_gradients(modules, wanted.gradients, plan)
    return out


def own_forward(_: fb.Action, ctx: ActionContext) -> None:
    assert ctx.stage is not None
    ctx.deliver_output(ctx.stage.module(*ctx.args, **ctx.kwargs))


def own_backward(_: fb.Action, ctx: ActionContext) -> None:
    torch.autograd.backward(ctx.outputs, ctx.output_gradients)


def own_input_backward(_: fb.Action, ctx: ActionContext) -> None:
    """The gradients of the input now, those of the weights as soon as W comes."""
    assert ctx.stage is not None
    weights = list(ctx.stage.module.parameters())
    found = torch.autograd.grad(
        ctx.outputs, [*ctx.inputs, *weights], ctx.output_gradients, allow_unused=True
    )
    ctx.deliver_gradients(found[: len(ctx.inputs)])
    ctx.state["weights"] = list(zip(weights, found[len(ctx.inputs) :], strict=True))


def own_weight_backward(_: fb.Action, ctx: ActionContext) -> None:
    for weight, gradient in ctx.state["weights"]:
        weight.grad = gradient if weight.grad is None else weight.grad + gradient


OWN: dict[str, Custom] = {
    "F": own_forward,
    "B": own_backward,
    "I": own_input_backward,
    "W": own_weight_backward,
}


@pytest.mark.parametrize(
    "name", ["1f1b", "interleaved_zero_bubble", "zbv_zero_bubble", "dualpipev"]
)
def test_functions_for_everything_give_the_same_gradients(name: str) -> None:
    pipe, modules, plan = make(name)
    calls: Counter[str] = Counter()

    def counted(kind: str) -> Custom:
        def function(action: fb.Action, ctx: ActionContext) -> None:
            assert (action, action.kind.name) == (ctx.action, kind)
            calls[kind] += 1
            OWN[kind](action, ctx)

        return function

    for kind in OWN:
        pipe.register_custom_function(kind, counted(kind))
    check(pipe, modules, plan)
    leaves = Counter(leaf.kind.name for _, _, a in plan.actions() for leaf in a.leaves)
    assert calls == leaves  # inside overlaps too


@pytest.mark.parametrize("name", ["gpipe", "zbv_zero_bubble", "dualpipev"])
def test_a_wrapper_runs_what_it_wraps(name: str) -> None:
    pipe, modules, plan = make(name)
    seen: list[str] = []

    def wrapper(action: fb.Action, ctx: ActionContext) -> None:
        seen.append(str(action))
        ctx.run()

    for kind in (fb.Kind.F, fb.Kind.B, fb.Kind.I, fb.Kind.W, fb.Kind.OVERLAP_F_B):
        pipe.register_custom_function(kind, wrapper)
    check(pipe, modules, plan)
    counted = [str(a) for _, _, action in plan.actions() for a in {action, *action.leaves}]
    assert Counter(seen) == Counter(counted)


def test_an_overlap_runs_its_parts_on_two_threads() -> None:
    pipe, modules, plan = make("dualpipev")
    names: set[tuple[str, str]] = set()

    def overlap(_: fb.Action, ctx: ActionContext) -> None:
        forward, backward = ctx.parts
        assert forward.action.kind is fb.Kind.F
        failures: list[BaseException] = []

        def run_forward() -> None:
            try:
                names.add(("F", threading.current_thread().name))
                forward.run()
            except BaseException as error:  # noqa: BLE001 - raised again on the main thread
                failures.append(error)

        thread = threading.Thread(target=run_forward, name="forward")
        thread.start()
        names.add(("B", threading.current_thread().name))
        backward.run()
        thread.join()
        if failures:
            raise failures[0]

    pipe.register_custom_function("OVERLAP_F_B", overlap)
    check(pipe, modules, plan)
    assert names == {("F", "forward"), ("B", threading.current_thread().name)}


def test_an_overlap_written_by_hand() -> None:
    pipe, modules, plan = make("dualpipev")

    def overlap(_: fb.Action, ctx: ActionContext) -> None:
        for part in ctx.parts:
            OWN[part.action.kind.name](part.action, part)

    pipe.register_custom_function("OVERLAP_F_B", overlap)
    check(pipe, modules, plan)


def test_what_a_function_sees() -> None:
    def loss_fn(output: Tensor, target: Tensor, *, scale: float) -> Tensor:
        return mse(output, target) * scale

    plan = fb.build("1f1b", num_ranks=2, num_microbatches=M)
    modules = linear_tanh(2)
    pipe = local_pipeline(modules, plan, loss_fn=loss_fn)
    seen: dict[str, Any] = {}

    def look(action: fb.Action, ctx: ActionContext) -> None:
        loss = ctx.loss
        seen[str(action)] = (
            ctx.microbatch,
            len(ctx.arg_mbs),
            len(ctx.kwarg_mbs),
            [None if g is None else g.shape for g in ctx.output_gradients],
            None if loss is None else float(loss.detach()),
            len(ctx.losses),
            ctx.loss_kwargs["scale"],
            ctx.target.shape,
        )
        assert ctx.schedule_ref is pipe
        assert ctx.target_mbs is not None
        ctx.run()

    pipe.register_custom_function("B", look)
    x = torch.randn(2 * M, WIDTH)
    out = pipe.step(x, target=x, loss_kwargs={"scale": 3.0})
    assert out.losses is not None
    size = torch.Size([2, WIDTH])
    assert seen["1B0"][:4] == (0, M, M, [torch.Size([])])
    assert seen["1B0"][4] == pytest.approx(float(out.losses[0]))
    assert seen["1B3"][5:] == (M, 3.0, size)
    assert seen["0B0"][3:5] == ([size], None)


@pytest.mark.parametrize("kind", ["UNSHARD", "RESHARD", "REDUCE_GRAD"])
def test_functions_that_belong_to_no_microbatch(kind: str) -> None:
    pipe, modules, plan = make("interleaved_1f1b", shard=True)
    stages: list[int] = []

    def function(action: fb.Action, ctx: ActionContext) -> None:
        assert ctx.stage is not None
        assert ctx.microbatch is None
        stages.append(ctx.stage.index)
        with pytest.raises(ParameterError, match="no single microbatch"):
            _ = ctx.inputs
        ctx.run()

    pipe.register_custom_function(kind, function)
    check(pipe, modules, plan)
    assert set(stages) == set(range(plan.num_stages))


def test_a_forward_function_serves_evaluation_too() -> None:
    pipe, modules, _ = make("zbv_zero_bubble")
    pipe.register_custom_function("F", own_forward)
    x = torch.randn(2 * M, WIDTH)
    with torch.no_grad():
        wanted = nn.Sequential(*modules)(x)
    torch.testing.assert_close(pipe.eval(x).output, wanted)


@pytest.mark.parametrize("kind", ["SEND_F", "RECV_F", "SEND_B", "RECV_B", "X", 3.5])
def test_other_kinds_are_refused(kind: Any) -> None:
    pipe, _, _ = make("1f1b")
    with pytest.raises(ValueError, match=f"no custom function can compute {kind}"):
        pipe.register_custom_function(kind, own_forward)


def test_replacing_a_function_warns() -> None:
    pipe, modules, plan = make("1f1b")
    pipe.register_custom_function("F", lambda action, ctx: None)
    with pytest.warns(UserWarning, match="function for F is replaced"):
        pipe.register_custom_function("F", own_forward)
    check(pipe, modules, plan)


def test_what_is_no_function_is_refused() -> None:
    pipe, _, _ = make("1f1b")
    with pytest.raises(ParameterError, match="cannot be called"):
        pipe.register_custom_function("F", 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "function", "message"),
    [
        ("F", lambda action, ctx: None, "delivered no output for 0F0"),
        ("F", lambda action, ctx: ctx.deliver_gradients([]), "0F0 gives no gradients"),
        ("I", lambda action, ctx: ctx.deliver_output(1), "gives no output"),
        ("I", lambda action, ctx: ctx.deliver_gradients([torch.ones(1)] * 3), "wants gradients of"),
        ("I", own_input_backward, "did not run the built-in I"),
    ],
)
def test_functions_that_do_not_do_their_part(kind: str, function: Custom, message: str) -> None:
    pipe, _, _ = make("zbv_zero_bubble")
    pipe.register_custom_function(kind, function)
    x = torch.randn(2 * M, WIDTH)
    with pytest.raises(ParameterError, match=message) as caught:
        pipe.step(x, target=x)
    assert "rank" in caught.value.__notes__[0]
    del pipe._custom[fb.Kind[kind]]
    assert pipe.step(x, target=x).losses is not None


def test_no_function_can_be_registered_during_a_step() -> None:
    pipe, _, _ = make("1f1b")
    pipe.register_custom_function(
        "F", lambda action, ctx: pipe.register_custom_function("B", own_backward)
    )
    x = torch.randn(2 * M, WIDTH)
    with pytest.raises(ParameterError, match="while a step runs"):
        pipe.step(x, target=x)


def test_the_example_of_the_docs_runs() -> None:
    page = Path(__file__).parents[2] / "docs" / "custom_functions.md"
    *_, example = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    assert 0.0 < float(names["out"].loss) < 10.0
    names["helper"].shutdown()
