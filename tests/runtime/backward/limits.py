"""Stages with parts whose weight gradients cannot wait."""

from __future__ import annotations

from typing import Any

import torch
from tests.runtime.backward.cases import Calls, Case, Cases, mlp, x
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.utils.checkpoint import checkpoint


def checkpointed(*, use_reentrant: bool) -> nn.Module:
    return Calls(
        lambda self, h: self.b(checkpoint(self.body, self.a(h), use_reentrant=use_reentrant)),
        a=nn.Linear(8, 8),
        body=mlp(),
        b=nn.Linear(8, 8),
    )


def offloaded(self: Calls, h: Tensor) -> Any:
    with torch.autograd.graph.save_on_cpu():
        return self.b(self.a(h).tanh())


class View(torch.autograd.Function):
    """Returns a view of its input."""

    @staticmethod
    def forward(ctx: FunctionCtx, h: Tensor) -> Tensor:
        return h.view_as(h)

    @staticmethod
    def backward(ctx: FunctionCtx, dy: Tensor) -> Tensor:
        return dy


class Product(torch.autograd.Function):
    """A linear layer that nobody can look into."""

    @staticmethod
    def forward(ctx: FunctionCtx, h: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(h, weight)
        # What a node of its own keeps must not be taken for a parameter.
        ctx.variable = h  # type: ignore[attr-defined]
        return h @ weight.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, dy: Tensor) -> tuple[Tensor, Tensor]:
        h, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        return dy @ weight, dy.t() @ h


class Stop(torch.autograd.Function):
    """Has no gradient to give."""

    @staticmethod
    def forward(ctx: FunctionCtx, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: FunctionCtx, dy: Tensor) -> None:
        return None


def compiled(backend: str) -> nn.Module:
    return Calls(
        lambda self, h: self.b(self.c(self.a(h))),
        a=nn.Linear(8, 8),
        c=torch.compile(mlp(), backend=backend),
        b=nn.Linear(8, 8),
    )


S = x(4, 8)

CHECKPOINTS: Cases = {
    "checkpoint": Case(lambda: checkpointed(use_reentrant=False), S, waits=2, early="body"),
    "checkpoint around all": Case(
        lambda: Calls(
            lambda self, h: checkpoint(self.body, h, use_reentrant=False),
            body=nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.GELU(), nn.Linear(16, 8)),
        ),
        S,
        waits=0,
        early="*",
    ),
    "reentrant checkpoint": Case(lambda: checkpointed(use_reentrant=True), S, 0, early="*"),
    "reentrant checkpoint of a parameter": Case(
        lambda: Calls(
            lambda self, h: self.b(
                checkpoint(lambda g, w: g @ w, h, self.a.weight, use_reentrant=True)
            ),
            a=nn.Linear(8, 8, bias=False),
            b=nn.Linear(8, 8),
        ),
        S,
        waits=0,
        early="*",
    ),
    "saved on the cpu": Case(
        lambda: Calls(offloaded, a=nn.Linear(8, 8), b=nn.Linear(8, 8)), S, waits=0, early="*"
    ),
}
"""Saved tensors that are not at hand."""

FUNCTIONS: Cases = {
    "function that returns a view": Case(
        lambda: Calls(lambda self, h: View.apply(self.a(h)), a=nn.Linear(8, 8)), S, waits=1
    ),
    "function with a weight": Case(
        lambda: Calls(lambda self, h: self.a(Product.apply(h, self.a.weight)), a=nn.Linear(8, 8)),
        S,
        waits=1,
        early="a.weight",
    ),
}
"""Autograd functions of the user."""

COMPILED: Cases = {
    backend: Case(lambda backend=backend: compiled(backend), S, waits=2, early="c")  # type: ignore[misc]
    for backend in ("aot_eager", "inductor")
}
"""Layers around a compiled submodule."""
