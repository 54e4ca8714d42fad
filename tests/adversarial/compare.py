"""Runs a schedule on the local engine and compares everything with the plain loop."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tests.reference import (
    WIDTH,
    Result,
    assert_gradients,
    assert_same,
    linear_tanh,
    local_pipeline,
    reference,
)
from torch import Tensor, nn

from fullbore.ir import Schedule
from fullbore.runtime import StepOutput


class Branching(nn.Module):
    """Takes and hands on two tensors, only one of which everybody trains through."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.linear, self.side = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.last = last

    def forward(self, h: Tensor, side: Tensor | None = None) -> object:
        out = self.linear(h).tanh()
        if side is not None:
            out = out * self.side(side)
        return out if self.last else (out, h.detach() if side is None else h)


def model(num_stages: int, *, branches: bool) -> list[nn.Module]:
    torch.manual_seed(0)
    if not branches:
        return linear_tanh(num_stages)
    return [Branching(last=stage == num_stages - 1) for stage in range(num_stages)]


def assert_right(schedule: Schedule, *, branches: bool = False, more_rows: int = 0) -> None:
    """A step and an evaluation of ``schedule`` equal the plain loop.

    Args:
        branches: hand on two tensors instead of one.
        more_rows: rows beyond one a microbatch, so that microbatches differ in size.
    """
    modules, count = model(schedule.num_stages, branches=branches), schedule.num_microbatches
    torch.manual_seed(1)
    rows = count + more_rows
    x, y = torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)
    parts = x.tensor_split(count)
    pipe = local_pipeline(modules, schedule)
    wanted = reference(
        modules,
        [(part,) for part in parts],
        y.tensor_split(count),
        weights=[len(part) / rows for part in parts],
    )
    if schedule.forward_only:
        for gradients in wanted.gradients:
            gradients.update(dict.fromkeys(gradients))
    else:
        _compare(modules, pipe.step(x, target=y, return_outputs=True), wanted, pipe.schedule)
    _compare(modules, pipe.eval(x, target=y), wanted, pipe.schedule)


def batches(schedule: Schedule) -> list[tuple[Tensor, Tensor]]:
    """Two batches of other sizes."""
    torch.manual_seed(1)
    rows = [schedule.num_microbatches + more for more in (0, 3)]
    return [(torch.randn(r, WIDTH), torch.randn(r, WIDTH)) for r in rows]


def assert_gradients_right(
    schedule: Schedule, found: Sequence[dict[int, dict[str, Tensor | None]]]
) -> None:
    """What the ranks have, by stage, after a step a batch equals what the plain loop has."""
    modules, count = model(schedule.num_stages, branches=True), schedule.num_microbatches
    for x, y in batches(schedule):
        parts = x.tensor_split(count)
        reference(
            modules,
            [(part,) for part in parts],
            y.tensor_split(count),
            weights=[len(part) / len(x) for part in parts],
            on_copy=False,
        )
    stages = {stage: own for rank in found for stage, own in rank.items()}
    assert sorted(stages) == list(range(schedule.num_stages))
    for stage, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            what = f"stage {stage} {name}"
            assert_same(stages[stage][name], parameter.grad, exact=False, what=what)


def _compare(modules: list[nn.Module], out: StepOutput, wanted: Result, plan: Schedule) -> None:
    assert out.losses is not None
    assert out.outputs is not None
    for m, (loss, output) in enumerate(zip(wanted.losses, wanted.outputs, strict=True)):
        assert_same(out.losses[m], loss, exact=True, what=f"loss {m}")
        assert_same(out.outputs[m], output.detach(), exact=True, what=f"output {m}")
    assert_gradients(modules, wanted.gradients, plan)
