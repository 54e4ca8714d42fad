"""Ranks that are told different things say so at once, all of them, and never go on wrongly."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.reference import WIDTH, assert_gradients, linear_tanh, mse, reference
from torch import Tensor, nn

import fullbore as fb
from fullbore.runtime import Pipeline, Replicate, Split, Stage, Transport
from fullbore.runtime.launch import launch

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

SECONDS = 5.0
"""Within which every rank must raise; messages may take much longer."""


class Scaled(nn.Linear):
    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        out = super().forward(x)
        return out if scale is None else out * scale


def batch(rows: int = 8) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)


def pipeline(
    transport: Transport, rank: int, plan: fb.Schedule, modules: list[nn.Module], **options: Any
) -> Pipeline:
    own = plan.placement.stages_of(rank)
    stages = [Stage(modules[stage], stage, len(modules)) for stage in own]
    options.setdefault("loss_fn", mse)
    return Pipeline(stages, plan, transport=transport, **options)


def outcome(call: Callable[[], object]) -> str:
    start = time.monotonic()
    try:
        call()
        text = "fine"
    except Exception as error:  # noqa: BLE001 - it is what the test looks at
        text = f"{type(error).__name__}: {error}"
    return text if time.monotonic() - start < SECONDS else f"too late: {text}"


def bad_calls(transport: Transport, rank: int) -> list[list[str]]:
    """Calls that are wrong on one rank, each followed by a right one; all on one pipeline."""
    plan, modules = fb.build("1f1b", num_ranks=2, num_microbatches=4), linear_tanh(2)
    pipe, (x, y) = pipeline(transport, rank, plan, modules), batch()

    def without_gradients() -> None:
        with torch.set_grad_enabled(rank == 0):
            pipe.step(x, target=y)

    def short_on(bad: int) -> Callable[[], object]:
        rows = 2 if rank == bad else 8
        return lambda: pipe.step(x[:rows], target=y[:rows])

    wrong = (short_on(0), short_on(1), lambda: pipe.step(x[:2], target=y[:2]), without_gradients)
    found = [[outcome(call), outcome(lambda: pipe.step(x, target=y))] for call in wrong]
    modules[rank].zero_grad()
    pipe.step(x, target=y)
    wanted = reference(
        modules, [(part,) for part in x.tensor_split(4)], y.tensor_split(4), weights=[0.25] * 4
    )
    assert_gradients([modules[rank]], wanted.gradients, plan, [rank])
    return found


def test_an_argument_that_is_wrong_on_one_rank_fails_on_both_and_the_next_step_is_good() -> None:
    found = launch(bad_calls, 2, timeout=60.0)
    rows, grad = "ParameterError: 4 microbatches need", "ParameterError: step() computes gradients"
    for own, other, what in ((0, 0, rows), (1, 1, rows), (3, 1, grad)):
        assert found[other][own][0].startswith(what)
        assert found[1 - other][own][0].startswith("PeerFailed")
        assert f"rank {other} failed: {what}" in found[1 - other][own][0]
    assert found[0][2][0].startswith(rows)
    assert found[1][2][0].startswith(rows)
    assert {after for rank in found for _, after in rank} == {"fine"}


def step_and_eval(transport: Transport, rank: int) -> list[str]:
    plan, (x, y) = fb.build("1f1b", num_ranks=2, num_microbatches=4), batch()
    pipe = pipeline(transport, rank, plan, linear_tanh(2))
    first = outcome(lambda: pipe.step(x, target=y) if rank else pipe.eval(x, target=y))
    good = outcome(lambda: pipe.step(x, target=y))
    later = outcome(lambda: pipe.step(x, target=y) if rank else pipe.eval(x, target=y))
    return [first, good, later, outcome(lambda: pipe.step(x, target=y))]


def test_one_rank_that_evaluates_while_the_other_trains_is_noticed() -> None:
    evaluating, training = launch(step_and_eval, 2, timeout=60.0)
    assert "rank 1 calls step(), rank 0 eval(); all ranks make the same calls" in evaluating[0]
    assert "rank 0 calls eval(), rank 1 step(); all ranks make the same calls" in training[0]
    # After a step, the one that evaluates asks; the other one goes on.
    assert "the ranks do not run the same schedule or step" in training[2]
    assert "the ranks do not run the same schedule or step" in evaluating[2]
    assert [*evaluating[1::2], *training[1::2]] == ["fine"] * 4


def different(transport: Transport, rank: int, plans: list[fb.Schedule]) -> str:
    return outcome(lambda: pipeline(transport, rank, plans[rank], linear_tanh(2)))


@pytest.mark.parametrize(
    "plans",
    [[("1f1b", 4), ("1f1b", 2)], [("gpipe", 4), ("1f1b", 4)]],
    ids=["number of microbatches", "family"],
)
def test_different_schedules_are_noticed_before_any_tensor_moves(plans: Any) -> None:
    built = [fb.build(name, num_ranks=2, num_microbatches=m) for name, m in plans]
    for text in launch(different, 2, args=(built,), timeout=60.0):
        assert "the ranks do not run the same schedule: rank" in text
        assert all(f"{name} of 2 ranks, 2 stages and {m} microbatches" in text for name, m in plans)


def misplaced(transport: Transport, rank: int) -> str:
    plan, modules = fb.build("zbv_zero_bubble", num_ranks=2, num_microbatches=4), linear_tanh(4)
    own = ((0, 2), (1, 2))[rank]
    stages = [Stage(modules[stage], stage, 4) for stage in own]
    return outcome(lambda: Pipeline(stages, plan, transport=transport, loss_fn=mse))


def test_a_rank_with_the_wrong_stages_ends_the_construction_of_all() -> None:
    first, second = launch(misplaced, 2, timeout=60.0)
    assert "ParameterError: zbv_zero_bubble: rank 0 must hold stages 0, 3" in first
    assert "PeerFailed: rank 0 failed: ParameterError" in second


def unknown_rows(transport: Transport, rank: int) -> list[str]:
    """The last rank knows the batch by its target alone, which is the same for all microbatches."""
    plan, (x, y) = fb.build("1f1b", num_ranks=2, num_microbatches=4), batch(7)
    pipe = pipeline(transport, rank, plan, linear_tanh(2), target_spec=Replicate())
    own = () if rank else (x,)
    scale = torch.ones(7, 1, requires_grad=True)
    return [
        outcome(lambda: pipe.step(*own, target=y[:1])),
        outcome(lambda: pipe.step(*own, target=y[:1], loss_weights=[1.0] * 4)),
        outcome(lambda: pipe.step(x, target=y[:1], scale=scale)),
        outcome(lambda: pipe.step(x, target=y[:1])),
    ]


def test_what_only_one_process_could_get_right_is_refused() -> None:
    first, last = launch(unknown_rows, 2, timeout=60.0)
    assert "doesn't tell how many rows" in first[0]
    assert "doesn't tell how many rows" in last[0]
    for found in (first, last):
        assert "keyword argument 'scale' asks for a gradient" in found[2]
        assert found[1::2] == ["fine", "fine"]


def middle_rank(transport: Transport, rank: int) -> None:
    """A rank between the first and the last has keyword arguments alone."""
    plan, (x, y) = fb.build("1f1b", num_ranks=3, num_microbatches=4), batch(7)
    torch.manual_seed(0)
    modules: list[nn.Module] = [Scaled(WIDTH, WIDTH) for _ in range(3)]
    scale = torch.rand(7, 1)
    pipe = pipeline(transport, rank, plan, modules, kwargs_spec={"scale": Split()})
    pipe.step(*([x] if rank == 0 else []), target=y if rank == 2 else None, scale=scale)
    wanted = reference(
        modules,
        [(part,) for part in x.tensor_split(4)],
        y.tensor_split(4),
        weights=[2 / 7, 2 / 7, 2 / 7, 1 / 7],
        kwargs=[{"scale": part} for part in scale.tensor_split(4)],
    )
    assert_gradients([modules[rank]], wanted.gradients, plan, [rank])


def test_a_middle_rank_splits_its_keyword_arguments_by_their_spec() -> None:
    launch(middle_rank, 3, timeout=60.0)
