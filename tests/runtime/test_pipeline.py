"""What a user of ``Pipeline`` may rely on, on the local engine (DESIGN 4.5)."""

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from tests.reference import (
    WIDTH,
    assert_gradients,
    assert_same,
    gradients,
    linear_tanh,
    local_pipeline,
    mse,
    reference,
)
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import fullbore as fb
from fullbore.errors import InvalidSchedule, ParameterError
from fullbore.runtime import LocalTransport, Pipeline, Stage

pytestmark = pytest.mark.torch

FAMILIES = (
    *("gpipe", "1f1b", "looped_bfs", "interleaved_1f1b"),
    *("interleaved_zero_bubble", "zbv_zero_bubble", "dualpipev"),
)


def schedule(name: str = "1f1b", *, ranks: int = 2, microbatches: int = 4) -> fb.Schedule:
    return fb.build(name, num_ranks=ranks, num_microbatches=microbatches)


def batch(rows: int = 8) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)


def test_uneven_microbatches_weigh_their_rows() -> None:
    """The gradient is that of the mean over the whole batch, for 7 rows in 4 microbatches."""
    plan, (x, y) = schedule("gpipe"), batch(7)
    modules = linear_tanh(2)
    whole = copy.deepcopy(modules)
    out = local_pipeline(modules, plan).step(x, target=y)
    loss = mse(nn.Sequential(*whole)(x), y)
    loss.backward()
    assert out.loss is not None
    torch.testing.assert_close(out.loss, loss.detach())
    for module, wanted in zip(modules, gradients(whole), strict=True):
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(parameter.grad, wanted[name])


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_of_two_steps_add_up(name: str) -> None:
    plan, (x, y) = schedule(name), batch()
    modules = linear_tanh(plan.num_stages)
    pipe = local_pipeline(modules, plan)
    pipe.step(x, target=y)
    once = gradients(modules)
    pipe.step(x, target=y)
    for module, single in zip(modules, once, strict=True):
        for key, parameter in module.named_parameters():
            wanted = single[key]
            assert wanted is not None
            assert_same(parameter.grad, 2 * wanted, exact=False, what=key)


@pytest.mark.parametrize("name", FAMILIES)
def test_evaluation_gives_outputs_and_touches_nothing(name: str) -> None:
    plan, (x, y) = schedule(name), batch()
    modules = [nn.Sequential(m, nn.Dropout(0.5)) for m in linear_tanh(plan.num_stages)]
    modules[0].get_submodule("1").eval()
    pipe = local_pipeline(modules, plan)
    before = pipe.eval(x)
    pipe.step(x, target=y)
    kept = gradients(modules)
    flags = [m.training for module in modules for m in module.modules()]
    after = pipe.eval(x, target=y)
    assert before.losses is None
    assert after.losses is not None
    expected = nn.Sequential(*copy.deepcopy(modules)).eval()(x)
    torch.testing.assert_close(before.output, expected, rtol=0, atol=1e-7)
    assert torch.equal(before.output, after.output)
    for found, wanted in zip(gradients(modules), kept, strict=True):
        assert all(torch.equal(found[k], wanted[k]) for k in wanted)  # type: ignore[arg-type]
    assert [m.training for module in modules for m in module.modules()] == flags
    assert flags.count(False) == 1


def test_keep_mode_evaluates_in_the_modules_own_mode() -> None:
    seen: list[bool] = []

    class Spy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(self.training)
            return super().forward(x)

    pipe = local_pipeline([Spy(WIDTH, WIDTH), nn.Identity()], schedule(microbatches=1))
    pipe.eval(batch()[0])
    pipe.eval(batch()[0], keep_mode=True)
    assert seen == [False, True]


def test_losses_and_outputs_belong_to_their_microbatch_whatever_the_order() -> None:
    text = "0F1,0F0,0B1,0B0\n1F1,1F0,1B1,1B0\n"
    plan, (x, y) = fb.loads(text, format="csv"), batch()
    modules = linear_tanh(2)
    wanted = reference(
        modules, [(part,) for part in x.tensor_split(2)], y.tensor_split(2), weights=[0.5, 0.5]
    )
    out = local_pipeline(modules, plan).step(x, target=y, return_outputs=True)
    assert out.losses is not None
    assert out.outputs is not None
    for m in range(2):
        assert_same(out.losses[m], wanted.losses[m], exact=True, what="loss")
        assert_same(out.outputs[m], wanted.outputs[m], exact=True, what="output")
    assert_gradients(modules, wanted.gradients, plan)


def test_a_batch_norm_sees_each_microbatch_once() -> None:
    plan, (x, y) = schedule(), batch()
    norm = nn.BatchNorm1d(WIDTH)
    modules = [nn.Sequential(nn.Linear(WIDTH, WIDTH), norm), nn.Identity()]
    local_pipeline(modules, plan).step(x, target=y)
    assert norm.num_batches_tracked == 4


def test_loss_weights_and_scale_grads_decide_what_a_microbatch_counts() -> None:
    plan, (x, y) = schedule(), batch()
    parts, targets = [(p,) for p in x.tensor_split(4)], y.tensor_split(4)
    given = [0.5, 0.25, 2.0, 0.0]
    for scale_grads, loss_weights, weights in ((False, None, [1.0] * 4), (True, given, given)):
        modules = linear_tanh(2)
        wanted = reference(modules, parts, targets, weights=weights)
        pipe = local_pipeline(modules, plan, scale_grads=scale_grads)
        out = pipe.step(x, target=y, loss_weights=loss_weights)
        assert_gradients(modules, wanted.gradients, plan)
        assert out.weights == tuple(weights)


def test_microbatches_cut_by_the_caller_may_differ_in_shape() -> None:
    plan = schedule("zbv_zero_bubble")
    modules = linear_tanh(plan.num_stages)
    torch.manual_seed(0)
    xs = [torch.randn(2, length, WIDTH) for length in (3, 6, 1, 4)]
    pipe = local_pipeline(modules, plan)
    wanted = reference(modules, [(x,) for x in xs], xs, weights=[0.25] * 4)
    out = pipe.step(arg_mbs=[(x,) for x in xs], target_mbs=xs, return_outputs=True)
    assert_gradients(modules, wanted.gradients, plan)
    assert out.outputs is not None
    assert [o.shape for o in out.outputs] == [x.shape for x in xs]
    for x in (torch.randn(8, 6, WIDTH), torch.randn(4, 3, WIDTH)):
        assert pipe.eval(x).output.shape == x.shape


def test_keyword_arguments_reach_every_stage_and_loss_arguments_the_loss() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor, *, scale: Tensor, flag: str | None) -> Tensor:
            assert flag == "text"
            output: Tensor = self.linear(x) * scale
            return output

    plan, (x, y) = schedule(), batch()
    scale = torch.rand(8, 1)
    modules = [Scaled() for _ in range(2)]

    def loss_fn(output: Tensor, target: Tensor, *, factor: float = 1.0) -> Tensor:
        return mse(output, target) * factor

    wanted = reference(
        modules,
        [(p,) for p in x.tensor_split(4)],
        y.tensor_split(4),
        weights=[0.25] * 4,
        loss_fn=lambda o, t: loss_fn(o, t, factor=3.0),
        kwargs=[{"scale": s, "flag": "text"} for s in scale.tensor_split(4)],
    )
    pipe = local_pipeline(modules, plan, loss_fn=loss_fn)
    pipe.step(x, target=y, scale=scale, flag="text", loss_kwargs={"factor": 3.0})
    assert_gradients(modules, wanted.gradients, plan)


@pytest.mark.parametrize("name", ["1f1b", "interleaved_zero_bubble"])
def test_the_callers_own_graph_before_the_pipeline_gets_its_gradient(name: str) -> None:
    plan, (x, y) = schedule(name), batch()
    modules = linear_tanh(plan.num_stages)
    front = nn.Linear(WIDTH, WIDTH)
    other, rest = copy.deepcopy(front), copy.deepcopy(modules)
    arguments = [(front(part),) for part in x.tensor_split(4)]
    pipe = local_pipeline(modules, plan)
    pipe.step(arg_mbs=arguments, target_mbs=y.tensor_split(4))
    for part, target in zip(x.tensor_split(4), y.tensor_split(4), strict=True):
        (0.25 * mse(nn.Sequential(other, *rest)(part), target)).backward()
    assert_same(front.weight.grad, other.weight.grad, exact=True, what="front")


def test_a_last_stages_output_does_not_outlive_its_backward() -> None:
    """Without asking for outputs, at most two of 8 are alive at once under 1F1B."""
    alive: list[weakref.ref[Tensor]] = []
    peak = 0

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            nonlocal peak
            output = super().forward(x)
            alive.append(weakref.ref(output))
            gc.collect()
            peak = max(peak, sum(ref() is not None for ref in alive))
            return output

    plan, (x, y) = schedule(microbatches=8), batch()
    local_pipeline([nn.Linear(WIDTH, WIDTH), Watched(WIDTH, WIDTH)], plan).step(x, target=y)
    assert len(alive) == 8
    assert peak <= 2


def test_profiler_labels_are_the_actions() -> None:
    plan, (x, y) = schedule("zbv_zero_bubble"), batch()
    pipe = local_pipeline(linear_tanh(plan.num_stages), plan)
    pipe.step(x, target=y)
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        pipe.step(x, target=y)
    names = {event.name for event in prof.events()}
    assert {f"PP:{action}" for _, _, action in pipe.schedule.actions()} <= names


class Broken(nn.Linear):
    """Raises at its fourth call."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 4:
            raise ValueError("model is broken")
        return super().forward(x)


def test_a_failing_stage_says_where_and_the_next_step_is_good() -> None:
    plan, (x, y) = schedule("1f1b", ranks=4), batch()
    modules = [*linear_tanh(1), Broken(WIDTH, WIDTH), *linear_tanh(2)]
    pipe = local_pipeline(modules, plan)
    with pytest.raises(ValueError, match="model is broken") as caught:
        pipe.step(x, target=y)
    assert caught.value.__notes__ == ["rank 1, stage 1, action 1F3"]
    for module in modules:
        module.zero_grad()
    parts = [(p,) for p in x.tensor_split(4)]
    wanted = reference(modules, parts, y.tensor_split(4), weights=[0.25] * 4)
    out = pipe.step(x, target=y)
    assert_gradients(modules, wanted.gradients, plan)
    assert out.losses is not None
    assert len(out.losses) == 4


@pytest.mark.parametrize(
    ("loss_fn", "error", "message"),
    [
        (lambda o, t: (o - t).square(), ParameterError, "one number, got a tensor of shape"),
        (lambda o, t: 1.0, ParameterError, "must return a tensor, got float"),
    ],
)
def test_a_loss_that_is_not_one_number_is_refused(
    loss_fn: Any, error: type[Exception], message: str
) -> None:
    x, y = batch()
    with pytest.raises(error, match=message):
        local_pipeline(linear_tanh(2), schedule(), loss_fn=loss_fn).step(x, target=y)


def test_a_loss_that_is_not_a_number_passes_through() -> None:
    x, y = batch()
    out = local_pipeline(linear_tanh(2), schedule()).step(x, target=y * float("nan"))
    assert out.loss is not None
    assert out.loss.isnan()


def test_a_loss_with_one_element_counts_as_a_scalar() -> None:
    plan, (x, y) = schedule(), batch()
    modules = linear_tanh(2)
    wanted = reference(
        modules, [(p,) for p in x.tensor_split(4)], y.tensor_split(4), weights=[0.25] * 4
    )
    pipe = local_pipeline(modules, plan, loss_fn=lambda o, t: mse(o, t).reshape(1))
    out = pipe.step(x, target=y)
    assert_gradients(modules, wanted.gradients, plan)
    assert out.losses is not None
    assert out.losses[0].shape == ()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_step_without_gradients_is_refused(context: Any) -> None:
    x, y = batch()
    pipe = local_pipeline(linear_tanh(2), schedule())
    with context(), pytest.raises(ParameterError, match=r"gradients.*switched off"):
        pipe.step(x, target=y)


def test_bad_arguments_of_a_step_are_refused() -> None:
    x, y = batch()
    pipe = local_pipeline(linear_tanh(2), schedule())
    with pytest.raises(ParameterError, match="needs a target"):
        pipe.step(x)
    with pytest.raises(ParameterError, match="not both"):
        pipe.step(x, target_mbs=[y] * 4)
    with pytest.raises(ParameterError, match="loss_weights must hold 4 numbers"):
        pipe.step(x, target=y, loss_weights=[1.0])
    for wrong in (1.0, [1.0, 1.0, 1.0, None], "abcd"):
        with pytest.raises(ParameterError, match="a number for each of 4 microbatches, got"):
            pipe.step(x, target=y, loss_weights=wrong)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="first stage needs arg_mbs"):
        pipe.step(target_mbs=[y] * 4)
    with pytest.raises(ParameterError, match="first stage needs the batch"):
        pipe.step(target=y)
    with pytest.raises(ParameterError, match="needs the loss_fn"):
        local_pipeline(linear_tanh(2), schedule(), loss_fn=None).step(x, target=y)


def test_a_forward_only_schedule_evaluates_and_does_not_step() -> None:
    x, y = batch()
    plan = fb.build("forward_only", num_ranks=2, num_microbatches=4)
    modules = linear_tanh(plan.num_stages)
    pipe = local_pipeline(modules, plan)
    assert torch.equal(pipe.eval(x).output[:2], nn.Sequential(*modules)(x[:2]))
    with pytest.raises(ParameterError, match="runs no backward"):
        pipe.step(x, target=y)


def test_a_lowered_schedule_is_taken_as_it_is() -> None:
    plan = fb.lower(schedule())
    assert local_pipeline(linear_tanh(2), plan).schedule is plan


def test_wrong_stages_are_refused_at_construction() -> None:
    modules = linear_tanh(4)
    plan = schedule("zbv_zero_bubble")
    with pytest.raises(ParameterError, match="stage"):
        Pipeline(
            [Stage(m, i, 4) for i, m in enumerate(modules[:3])], plan, transport=LocalTransport()
        )
    with pytest.raises(ParameterError, match="got a Sequential; wrap each module"):
        Pipeline(modules, plan, transport=LocalTransport())  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="must be a Schedule, got a str"):
        Pipeline([], "zbv", transport=LocalTransport())  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="given twice"):
        Pipeline([Stage(m, 0, 4) for m in modules], plan, transport=LocalTransport())
    with pytest.raises(ParameterError, match=r"Stage.*in a schedule of 4 stages"):
        Pipeline([Stage(modules[0], 0, 5)], plan, transport=LocalTransport())
    with pytest.raises(ParameterError, match=r"index 4 is not in 0\.\.3"):
        Stage(modules[0], 4, 4)


def test_an_invalid_schedule_is_refused_at_construction() -> None:
    plan = fb.loads("0F0,0F1,0B0\n1F0,1F1,1B0,1B1\n", format="csv")
    with pytest.raises(InvalidSchedule, match=r"0B1|stage 0"):
        local_pipeline(linear_tanh(2), plan)
