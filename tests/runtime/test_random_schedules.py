"""Any legal compute order on any placement gives what the plain loop gives."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.passes.samples import orders
from tests.reference import (
    WIDTH,
    Result,
    assert_gradients,
    assert_same,
    linear_tanh,
    local_pipeline,
    mse,
    reference,
)
from torch import Tensor, nn

import fullbore as fb
from fullbore.passes import PASSES, run_passes

pytestmark = pytest.mark.torch

LOWERINGS: tuple[dict[str, object], ...] = (
    {},
    {"batch": True},
    {"sink": True},
    {"sink": True, "batch": True},
    {"shard": True, "reduce_grad": True, "max_active_stages": 1},
)


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


def assert_equal(modules: list[nn.Module], out: object, wanted: Result, plan: fb.Schedule) -> None:
    losses = out.losses  # type: ignore[attr-defined]
    outputs = out.outputs  # type: ignore[attr-defined]
    for m, (loss, output) in enumerate(zip(wanted.losses, wanted.outputs, strict=True)):
        assert_same(losses[m], loss, exact=True, what=f"loss {m}")
        assert_same(outputs[m], output.detach(), exact=True, what=f"output {m}")
    assert_gradients(modules, wanted.gradients, plan)


@settings(max_examples=60)
@given(
    orders(),
    st.sampled_from(LOWERINGS),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
)
def test_it_equals_the_plain_loop(
    plan: fb.Schedule, lowering: dict[str, object], fuse: bool, branches: bool, more: int
) -> None:
    fused = run_passes(plan, [PASSES["fuse_overlap"]()]) if fuse else plan
    lowered = fb.lower(fused, **lowering)  # type: ignore[arg-type]
    modules, count = model(plan.num_stages, branches=branches), plan.num_microbatches
    torch.manual_seed(1)
    rows = count + more
    x, y = torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)
    parts = x.tensor_split(count)
    pipe = local_pipeline(modules, lowered)
    wanted = reference(
        modules,
        [(part,) for part in parts],
        y.tensor_split(count),
        weights=[len(part) / rows for part in parts],
        loss_fn=mse,
    )
    if not plan.forward_only:
        out = pipe.step(x, target=y, return_outputs=True)
        assert_equal(modules, out, wanted, lowered)
    evaluated = pipe.eval(x, target=y)
    if plan.forward_only:
        for gradients in wanted.gradients:
            gradients.update(dict.fromkeys(gradients))
    assert_equal(modules, evaluated, wanted, lowered)
