"""What would silently give wrong gradients, or keep memory, and what happens instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.reference import WIDTH, assert_gradients, linear_tanh, local_pipeline, mse, reference
from torch import Tensor, nn

import fullbore as fb
from fullbore.errors import ExecutionError, ParameterError
from fullbore.runtime import LocalTransport, Pipeline, Replicate, Split, Stage
from fullbore.runtime.microbatch import Specs, merge, split_batch

pytestmark = pytest.mark.torch

FAMILIES = ("1f1b", "zbv_zero_bubble", "dualpipev", "interleaved_zero_bubble")


@dataclass
class Opaque:
    """Nothing that pytree looks into."""

    h: Tensor


class Wrapped(nn.Linear):
    def forward(self, x: Any) -> Any:
        return Opaque(super().forward(x.h if isinstance(x, Opaque) else x))


def schedule(name: str = "1f1b", *, microbatches: int = 4) -> fb.Schedule:
    return fb.build(name, num_ranks=2, num_microbatches=microbatches)


def batch(rows: int = 8) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_boundary_value_that_hides_tensors_is_refused(name: str) -> None:
    plan, (x, y) = schedule(name), batch()
    modules = [Wrapped(WIDTH, WIDTH) for _ in range(plan.num_stages)]
    with pytest.raises(ParameterError, match=r"Opaque cannot be handed.*pytree") as caught:
        local_pipeline(modules, plan).step(x, target=y)
    assert caught.value.__notes__ == ["rank 0, stage 0, action 0F0"]


@pytest.mark.parametrize(
    ("call", "where"),
    [
        ({"args": (Opaque(torch.ones(8, 2)),)}, r"argument\[0\]: a Opaque"),
        ({"target": torch.ones(8).numpy()}, "target: a ndarray"),
        ({"kwargs": {"mask": [Opaque(torch.ones(8))]}}, r"'mask'\[0\]: a Opaque"),
    ],
)
def test_an_object_that_may_hold_a_batch_needs_a_spec(call: dict[str, Any], where: str) -> None:
    given: dict[str, Any] = {
        "args": (torch.ones(8, 2),),
        "kwargs": {},
        "num_microbatches": 4,
    } | call
    with pytest.raises(ParameterError, match=f"{where} cannot be cut"):
        split_batch(**given)
    spec = Specs((Replicate(),), {"mask": Replicate()} if "kwargs" in call else None, Replicate())
    found = split_batch(**given, specs=spec)
    assert len(found.args) == 4


def test_a_keyword_spec_tells_the_rows_where_nothing_else_does() -> None:
    found = split_batch(
        (), {"k": torch.ones(3, 7)}, num_microbatches=4, specs=Specs(kwargs={"k": Split(1)})
    )
    assert [k["k"].shape[1] for k in found.kwargs] == [2, 2, 2, 1]
    assert found.weights == (2 / 7, 2 / 7, 2 / 7, 1 / 7)


def test_a_batch_without_tensors_weighs_its_microbatches_the_same() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, count: int) -> Any:
            return self.linear(torch.ones(count, WIDTH))

    modules = [Constant(), nn.Linear(WIDTH, WIDTH)]
    pipe = local_pipeline(modules, schedule(), loss_fn=lambda o, t: o.mean() * t)
    out = pipe.step(3, target=2)
    assert out.weights == (0.25,) * 4
    wanted = reference(
        modules, [(3,)] * 4, [2] * 4, weights=[0.25] * 4, loss_fn=lambda o, t: o.mean() * t
    )
    assert_gradients(modules, wanted.gradients, pipe.schedule)


class Counting(nn.Module):
    """Hands on how often it ran: the buffer itself, or a copy."""

    def __init__(self, *, copies: bool) -> None:
        super().__init__()
        self.linear, self.copies = nn.Linear(WIDTH, WIDTH), copies
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, count: Tensor | None = None) -> Any:
        own = self.get_buffer("count").add_(1)
        out = self.linear(x).tanh()
        return (out if count is None else out * count), (own.clone() if self.copies else own)


@pytest.mark.parametrize("name", [*FAMILIES, "gpipe"])
def test_what_was_returned_must_not_change_before_it_is_used(name: str) -> None:
    plan, (x, y) = schedule(name), batch()
    *modules, last = [Counting(copies=True) for _ in range(plan.num_stages)]
    wanted = reference(
        [*modules, Takes(last)],
        [(p,) for p in x.tensor_split(4)],
        y.tensor_split(4),
        weights=[0.25] * 4,
    )
    local_pipeline([*modules, Takes(last)], plan).step(x, target=y)
    assert_gradients([*modules, Takes(last)], wanted.gradients, plan)
    for module in modules:
        module.copies = False
    for run in ("step", "eval"):
        pipe = local_pipeline([*modules, Takes(last)], plan)
        with pytest.raises(ParameterError, match=r"changed in place before.*clone\(\)"):
            getattr(pipe, run)(x, target=y)


class Takes(nn.Module):
    """The first output of another module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Tensor) -> Tensor:
        out: Tensor = self.module(*args)[0]
        return out


def test_a_hook_that_changes_the_gradient_of_a_loss_changes_that_one_only() -> None:
    """The weight of a microbatch's loss is kept from step to step."""

    class Loss(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            loss = super().forward(x).square().mean()
            loss.register_hook(lambda gradient: gradient.mul_(0.5))
            return loss

    plan, (x, y) = schedule(), batch()
    modules = [*linear_tanh(1), Loss(WIDTH, WIDTH)]
    pipe = local_pipeline(modules, plan, loss_fn=lambda o, t: o)
    parts = [(p,) for p in x.tensor_split(4)]
    wanted = reference(
        modules, parts, y.tensor_split(4), weights=[0.25] * 4, loss_fn=lambda o, t: o
    )
    pipe.step(x, target=y)
    assert_gradients(modules, wanted.gradients, plan)


def test_losses_none_of_which_leads_to_a_parameter_are_refused() -> None:
    x, y = batch()
    pipe = local_pipeline(linear_tanh(2), schedule(), loss_fn=lambda o, t: mse(o, t).detach())
    with pytest.raises(ParameterError, match="no loss of this step requires grad") as caught:
        pipe.step(x, target=y)
    assert caught.value.__notes__ == ["rank 1, stage 1, action 1F3"]
    assert len(pipe.eval(x, target=y).losses or ()) == 4


def test_some_losses_may_be_constants() -> None:
    """No valid token in a microbatch, say."""
    plan, (x, y) = schedule(), batch()
    y[2:4] = 0

    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        return mse(output, target) if target.any() else torch.zeros(())

    modules = linear_tanh(2)
    wanted = reference(
        modules,
        [(part,) for part in x.tensor_split(4)],
        y.tensor_split(4),
        weights=[0.25] * 4,
        loss_fn=loss_fn,
    )
    local_pipeline(modules, plan, loss_fn=loss_fn).step(x, target=y)
    assert_gradients(modules, wanted.gradients, plan)


def test_a_complex_loss_is_refused() -> None:
    x, y = batch()
    pipe = local_pipeline(linear_tanh(2), schedule(), loss_fn=lambda o, t: (o * 1j).mean())
    with pytest.raises(ParameterError, match=r"real number, got torch\.complex64"):
        pipe.step(x, target=y)


def test_reported_losses_are_copies() -> None:
    """Neither the large tensor that a loss is a view of, nor what a loss function changes later."""
    x, y = batch()
    total = torch.zeros(())

    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        return total.add_(1) if not output.requires_grad else (output - target).mean(0)[0]

    pipe = local_pipeline(linear_tanh(2), schedule(), loss_fn=loss_fn)
    losses = pipe.step(x, target=y).losses
    assert losses is not None
    assert all(loss.untyped_storage().nbytes() == 4 for loss in losses)
    assert [float(loss) for loss in pipe.eval(x, target=y).losses or ()] == [1, 2, 3, 4]


def test_outputs_ask_for_no_gradient() -> None:
    """A loss computed from them would train nothing."""
    x, y = batch()
    out = local_pipeline(linear_tanh(2), schedule()).step(x, target=y, return_outputs=True)
    assert not out.output.requires_grad
    assert out.output.numpy().shape == (8, WIDTH)


def test_weights_that_change_every_step_are_not_kept_for_ever() -> None:
    (x, y), kept = batch(), 1024
    pipe = local_pipeline(linear_tanh(2), schedule(microbatches=8))
    for step in range(kept // 8 + 2):
        pipe.step(x, target=y, loss_weights=[step + m / 8 for m in range(8)])
    assert len(pipe._programs[True].worker._unit_weights) <= kept


def test_a_module_hears_that_evaluation_is_over() -> None:
    """Some modules do more in train() than set the flag: they merge weights, or keep a part
    frozen."""

    class Merging(nn.Linear):
        merged = False

        def train(self, mode: bool = True) -> Merging:
            self.merged = not mode
            return super().train(mode)

    class Frozen(nn.Sequential):
        def train(self, mode: bool = True) -> Frozen:
            super().train(mode)
            self[0].eval()
            return self

    modules = [nn.Sequential(Merging(WIDTH, WIDTH)), Frozen(Merging(WIDTH, WIDTH), nn.Dropout())]
    modules[1].train()
    flags = [part.training for module in modules for part in module.modules()]
    local_pipeline(modules, schedule()).eval(batch()[0])
    assert [part.training for module in modules for part in module.modules()] == flags
    assert not modules[0].get_submodule("0").merged


def test_a_step_within_a_step_is_refused() -> None:
    x, y = batch()

    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        pipe.eval(x)
        return mse(output, target)

    pipe = local_pipeline(linear_tanh(2), schedule(), loss_fn=loss_fn)
    with pytest.raises(ParameterError, match="cannot be called while one of them runs"):
        pipe.step(x, target=y)
    assert pipe.eval(x).output.shape == (8, WIDTH)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss_fn": "mse"}, "loss_fn must be a function of output and target, got a str"),
        ({"transport": None}, r"a Transport, got a NoneType; LocalTransport\(\) plays all"),
        ({"transport": "gloo"}, "a Transport, got a str"),
        ({"kwargs_spec": Replicate()}, "kwargs_spec must give a spec by keyword"),
    ],
)
def test_what_a_pipeline_cannot_use_is_refused_at_construction(
    given: dict[str, Any], message: str
) -> None:
    stages = [Stage(module, i, 2) for i, module in enumerate(linear_tanh(2))]
    options: dict[str, Any] = {"transport": LocalTransport(), "loss_fn": mse} | given
    with pytest.raises(ParameterError, match=message):
        Pipeline(stages, schedule(), **options)


@pytest.mark.parametrize(("index", "count"), [(1.0, 2), (0, 2.0), (True, 2), (None, 2), (0, "2")])
def test_a_stage_is_numbered_by_whole_numbers(index: Any, count: Any) -> None:
    with pytest.raises(ParameterError, match="must be whole numbers"):
        Stage(nn.Identity(), index, count)


def test_a_dimension_is_a_whole_number() -> None:
    with pytest.raises(ParameterError, match="dim must be a whole number, got None"):
        Split(None)  # type: ignore[arg-type]


def test_a_closed_pipeline_says_so() -> None:
    pipe = local_pipeline(linear_tanh(2), schedule())
    pipe.close()
    with pytest.raises(ExecutionError, match="cannot be used any more: it was closed"):
        pipe.eval(batch()[0])


def test_another_module_of_a_stage_is_the_one_that_trains() -> None:
    plan, (x, y) = schedule(), batch()
    stages = [Stage(module, i, 2) for i, module in enumerate(linear_tanh(2))]
    pipe = Pipeline(stages, plan, transport=LocalTransport(), loss_fn=mse)
    pipe.step(x, target=y)
    modules = linear_tanh(2, seed=1)
    for stage, module in zip(stages, modules, strict=True):
        stage.module = module
    parts = [(p,) for p in x.tensor_split(4)]
    wanted = reference(modules, parts, y.tensor_split(4), weights=[0.25] * 4)
    pipe.step(x, target=y)
    assert_gradients(modules, wanted.gradients, plan)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"stage 1: .*torch.nn.Module, got a builtin_function"):
        Stage(len, 1, 2)  # type: ignore[arg-type]


def test_a_module_that_another_system_shards_is_refused() -> None:
    class FullyShardedDataParallel(nn.Module):
        """Named as torch's, which needs a process group."""

    with pytest.raises(ParameterError, match="FullyShardedDataParallel reduces gradients"):
        Stage(nn.Sequential(FullyShardedDataParallel()), 0, 2)


def test_outputs_only_some_of_which_are_tensors_cannot_be_joined() -> None:
    with pytest.raises(ParameterError, match="some are tensors"):
        merge([torch.ones(1), None])
    nan = float("nan")
    assert merge([nan, nan]) is nan


@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(weight: float) -> None:
    x, y = batch()
    pipe = local_pipeline(linear_tanh(2), schedule())
    with pytest.raises(ParameterError, match="loss_weights must be finite"):
        pipe.step(x, target=y, loss_weights=[weight] + [1.0] * (pipe.schedule.num_microbatches - 1))
