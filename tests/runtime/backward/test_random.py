"""Stages put together at random: whatever they do, both backwards leave the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.backward.cases import Calls, parameter
from torch import Tensor, nn

from fullbore.runtime.backward import SplitBackward, full_backward

pytestmark = pytest.mark.torch

WIDTH, ROWS = 8, 4
IDS = torch.tensor([1, 5, 1, 7])

# From a hidden state, another one, a weight and the same or another weight to a hidden state.
OPERATIONS: dict[str, Callable[..., Any]] = {
    "linear": lambda h, _, w, v: F.linear(h, w, v[0]),
    "product": lambda h, _, w, __: h @ w,
    "left": lambda h, _, w, __: (w @ h.t()).t(),
    "addmm": lambda h, g, w, _: torch.addmm(g, h, w, alpha=0.5),
    "addmm of weights": lambda h, _, w, v: torch.addmm(h, w[:ROWS], v),
    "bmm": lambda h, _, w, v: torch.bmm(h.expand(2, ROWS, WIDTH), torch.stack((w, v))).sum(0),
    "embedding": lambda h, _, w, __: h + F.embedding(IDS, w),
    "scale": lambda h, _, w, __: h * w[0],
    "add": lambda h, g, _, __: h + g,
    "tanh": lambda h, _, __, ___: h.tanh(),
    "relu": lambda h, _, __, ___: (h + 0.1).relu_(),
    "halves": lambda h, g, _, __: torch.cat((h.chunk(2, -1)[1], g.chunk(2, -1)[0]), -1),
    "constant": lambda h, _, w, __: h.detach() @ w,
    "low rank": lambda h, _, w, v: F.linear(h, w + v[:, :2] @ w[:2]),
    "turned": lambda h, _, w, v: h @ (w * 1.5).t() @ v.t(),
}
STEP = st.tuples(
    st.sampled_from(sorted(OPERATIONS)),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 2),
    st.integers(0, 2),
)


def stage(steps: list[Any], outputs: list[int], frozen: int | None) -> nn.Module:
    def forward(self: Calls, x: Tensor) -> list[Tensor]:
        states, weights = [x * 1.0, x], [self.w0, self.w1, self.w2]
        for name, h, g, w, v in steps:
            take = [states[i % len(states)] for i in (h, g)]
            states.append(OPERATIONS[name](*take, weights[w], weights[v]))
        return [states[-1], *(states[i % len(states)] for i in outputs)]

    torch.manual_seed(0)
    module = Calls(forward, **{f"w{i}": parameter(WIDTH, WIDTH) for i in range(3)})
    if frozen is not None:
        getattr(module, f"w{frozen}").requires_grad_(False)
    return module


def gradients(
    module: nn.Module,
    backward: Callable[[list[Tensor], list[Tensor | None], Tensor], None],
    *,
    fed: bool,
) -> tuple[list[Tensor | None], list[str]]:
    finished: list[str] = []
    handles = [
        weight.register_post_accumulate_grad_hook(lambda _, name=name: finished.append(name))
        for name, weight in module.named_parameters()
        if weight.requires_grad
    ]
    module.zero_grad()
    inputs = []
    for microbatch in range(2):
        torch.manual_seed(1 + microbatch)
        x = torch.randn(ROWS, WIDTH).requires_grad_(fed)
        y = module(x)
        backward(y, [torch.randn_like(t) for t in y], x)
        inputs.append(x)
    for handle in handles:
        handle.remove()
    return [t.grad for t in (*module.parameters(), *inputs)], sorted(finished)


def whole(y: list[Tensor], dy: list[Tensor | None], _: Tensor) -> None:
    full_backward(y, dy)


def split(y: list[Tensor], dy: list[Tensor | None], x: Tensor) -> None:
    both = SplitBackward(y, [x])
    both.input_backward(dy)
    both.weight_backward()


@settings(max_examples=100)
@given(
    steps=st.lists(STEP, min_size=1, max_size=10),
    outputs=st.lists(st.integers(0, 9), max_size=2),
    frozen=st.none() | st.integers(0, 2),
    fed=st.booleans(),
)
def test_both_backwards_leave_the_same(
    steps: list[Any], outputs: list[int], frozen: int | None, fed: bool
):
    module = stage(steps, outputs, frozen)
    expected, hooks = gradients(module, whole, fed=fed)
    found, split_hooks = gradients(module, split, fed=fed)
    assert split_hooks == hooks
    for ours, reference in zip(found, expected, strict=True):
        assert (ours is None) == (reference is None)
        if ours is not None and reference is not None:
            assert torch.equal(ours, reference)
            assert ours.stride() == reference.stride()
