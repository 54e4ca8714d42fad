"""Stages that use their parameters in every way but one layer after the other."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tests.runtime.backward.cases import Calls, Case, Cases, freeze, mlp, parameter, tokens, x
from torch import Tensor, nn


def weights(function: Callable[..., Any], *shape: int) -> Callable[[], nn.Module]:
    """A module of one parameter ``w``."""
    return lambda: Calls(function, w=parameter(*shape))


def linears(function: Callable[..., Any], **widths: tuple[int, int]) -> Callable[[], nn.Module]:
    """A module of linear layers."""
    return lambda: Calls(function, **{name: nn.Linear(*width) for name, width in widths.items()})


def autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    def inner(self: Calls, h: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return function(self, h)

    return inner


def gate(self: Calls, h: Tensor) -> Any:
    a, b = self.a(h).chunk(2, -1)
    return a * b.sigmoid()


def hidden_and_head(self: Calls, h: Tensor) -> Any:
    hidden = self.a(h)
    return hidden, self.b(hidden)


def tied_head() -> nn.Module:
    module = Calls(
        lambda self, ids: self.head(self.body(self.table(ids))),
        table=nn.Embedding(11, 8),
        body=nn.Linear(8, 8),
        head=nn.Linear(8, 11, bias=False),
    )
    module.head.weight = module.table.weight
    return module


def tied_thrice(self: Calls, h: Tensor) -> Any:
    """One table for two embeddings and the head, as encoder-decoder models have it."""
    ids = torch.arange(4)
    return F.linear(self.a(h + self.table(ids) + self.table(ids + 3)), self.table.weight)


def tied_linears() -> nn.Module:
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    module[2].weight = module[0].weight
    return module


def sparse() -> Tensor:
    matrix = torch.randn(40, 40, generator=torch.Generator().manual_seed(3))
    with warnings.catch_warnings(action="ignore"):
        return matrix.to_sparse_csr()


def written_into(self: Calls, h: Tensor) -> Any:
    out = torch.zeros(6, 8)
    out[1:5].addmm_(h, self.w)
    return out * 2


S, W, L = x(4, 8), (8, 8), (8, 8)

SHARED: Cases = {
    "l k l": Case(
        linears(lambda self, h: self.a(self.b(self.a(h).tanh()).tanh()), a=L, b=L), S, waits=3
    ),
    "l l k l": Case(
        linears(lambda self, h: self.a(self.a(self.b(self.a(h).tanh()).tanh())), a=L, b=L), S, 4
    ),
    "tied linears": Case(tied_linears, S, waits=2),
    "tied embedding and head": Case(tied_head, tokens, waits=3),
    # W would add the three contributions in another order.
    "tied embeddings and head": Case(
        lambda: Calls(tied_thrice, table=nn.Embedding(8, 8), a=nn.Linear(8, 8)),
        S,
        waits=1,
        early="table",
    ),
    "sliced": Case(
        weights(lambda self, h: F.linear(h, self.w[4:12]) + F.linear(h, self.w[:8]), 16, 8), S, 2
    ),
    "x w w": Case(weights(lambda self, h: h @ self.w @ self.w, 2, 2), x(1, 2), waits=2),
    "x w w w w": Case(
        weights(lambda self, h: h @ self.w @ self.w @ self.w @ self.w, 4, 4), x(3, 4), waits=4
    ),
    "product and sum": Case(
        weights(lambda self, h: F.linear(h, self.w) * self.w.sum(), *W), S, waits=0, early="w"
    ),
    "product and sum of two": Case(
        lambda: Calls(
            lambda self, h: F.linear(F.linear(h, self.w) * self.w[0], self.v + self.w),
            w=parameter(*W),
            v=parameter(*W),
        ),
        S,
        waits=0,
        early="w v",
    ),
    # The weight is immediate, the bias of the same product is not.
    "bias waits alone": Case(
        lambda: Calls(lambda self, h: self.a(h) * self.a.weight[0], a=nn.Linear(8, 8)),
        S,
        waits=1,
        early="a.weight",
    ),
    "autocast": Case(
        linears(autocast(lambda self, h: self.b(F.gelu(self.a(h)))), a=L, b=L), S, waits=2
    ),
    "autocast, layer used twice": Case(
        linears(autocast(lambda self, h: self.b(F.gelu(self.a(self.a(h))))), a=L, b=L), S, waits=3
    ),
    "autocast, encoder": Case(
        lambda: Calls(
            autocast(lambda self, h: self.a(h)),
            a=nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True),
        ),
        x(2, 5, 16),
        waits=4,
        early="a.norm1 a.norm2 a.self_attn.in_proj_bias",
    ),
    "autocast of a bfloat16 weight": Case(
        lambda: Calls(
            autocast(lambda self, h: self.b(self.a(h))), a=nn.Linear(8, 8).bfloat16(), b=mlp()
        ),
        S,
        waits=3,
    ),
}
"""One parameter, several uses."""

OUTPUTS: Cases = {
    "hidden state and head": Case(linears(hidden_and_head, a=L, b=(8, 3)), S, waits=2),
    "view": Case(linears(lambda self, h: self.a(h).view(2, 2, 16)[:, :1], a=(8, 16)), S, waits=1),
    "gate": Case(linears(gate, a=(8, 16)), S, waits=1),
    "chunks": Case(linears(lambda self, h: self.a(h).chunk(2, -1), a=(8, 16)), S, waits=1),
    "input": Case(linears(lambda self, h: (h, self.a(h)), a=L), S, waits=1),
    "parameter": Case(
        lambda: Calls(
            lambda self, h: (self.a(h), self.w * 2, self.w), a=nn.Linear(8, 8), w=parameter(8)
        ),
        S,
        waits=1,
        early="w",
    ),
    "same twice": Case(linears(lambda self, h: (self.a(h),) * 2, a=L), S, waits=1),
    "input unused": Case(
        linears(lambda self, h, _: self.a(h), a=L),
        lambda: [torch.randn(4, 8), torch.randn(4, 8)],
        waits=1,
    ),
    "parameter unused": Case(linears(lambda self, h: self.a(h), a=L, b=L), S, waits=1),
    "no gradient": Case(linears(lambda self, h: (self.a(h), h.argmax()), a=L), S, waits=1),
}
"""What a stage returns."""


def three() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 8)
    )


FROZEN: Cases = {
    "in the middle": Case(lambda: freeze(three(), "2."), S, waits=2),
    "first, on the batch": Case(lambda: freeze(three(), "0."), S, waits=2, raw=True),
    "weights": Case(lambda: freeze(mlp(), "weight"), S, waits=2),
    "biases": Case(lambda: freeze(mlp(), "bias"), S, waits=2),
    "all": Case(lambda: freeze(mlp(), ""), S, waits=0),
    "all, on the batch": Case(lambda: freeze(mlp(), ""), S, waits=0, raw=True),
    "base of an adapter": Case(
        lambda: Calls(
            lambda self, h: self.base(h) + self.b(self.a(h)),
            base=freeze(nn.Linear(8, 8), ""),
            a=nn.Linear(8, 2),
            b=nn.Linear(2, 8),
        ),
        S,
        waits=2,
    ),
}
"""Parameters without gradient."""

PRODUCTS: Cases = {
    "low rank on a weight": Case(
        lambda: Calls(
            lambda self, h: F.linear(h, self.w + self.b @ self.a),
            w=parameter(8, 8),
            a=parameter(2, 8),
            b=parameter(8, 2),
        ),
        S,
        waits=1,
    ),
    "weight first": Case(weights(lambda self, h: self.w @ h, 4, 4), x(4, 3), waits=1),
    "weight by vector": Case(weights(lambda self, h: self.w @ h, 4, 4), x(4), 0, early="w"),
    "einsum": Case(
        weights(lambda self, h: torch.einsum("bsd,sde->bse", h, self.w), 3, 8, 4), x(2, 3, 8), 1
    ),
    "einsum, many heads": Case(
        weights(lambda self, h: torch.einsum("bsd,hde->bhse", h, self.w), 3, 8, 4), x(2, 3, 8), 1
    ),
    "matmul of a detached input": Case(
        weights(lambda self, h: h.transpose(1, 2).detach() @ self.w + 0 * h.sum(), 3, 4),
        x(2, 3, 8),
        waits=1,
    ),
    "bmm": Case(weights(lambda self, h: torch.bmm(self.w, h), 2, 4, 3), x(2, 3, 8), waits=1),
    "baddbmm": Case(
        lambda: Calls(
            lambda self, h: torch.baddbmm(self.b, h, self.w),
            w=parameter(2, 8, 4),
            b=parameter(2, 1, 4),
        ),
        x(2, 3, 8),
        waits=0,
        early="w b",
    ),
    "scaled addmm": Case(
        lambda: Calls(
            lambda self, h: torch.addmm(self.b, h, self.w, beta=0.5, alpha=2.0),
            w=parameter(8, 4),
            b=parameter(4),
        ),
        x(3, 8),
        waits=1,
    ),
    "scaled addmm, weight first": Case(
        lambda: Calls(
            lambda self, h: torch.addmm(self.b, self.w, h, beta=0.5, alpha=2.0),
            w=parameter(4, 8),
            b=parameter(4, 1),
        ),
        x(8, 3),
        waits=1,
    ),
    "addmm of two parameters": Case(
        lambda: Calls(
            lambda self, h: torch.addmm(h, self.b, self.a), a=parameter(2, 8), b=parameter(4, 2)
        ),
        S,
        waits=1,
    ),
    "addmm in place": Case(weights(lambda self, h: (h * 2).addmm_(h, self.w), 8, 8), S, waits=1),
    "addmm into a part": Case(weights(written_into, 8, 8), S, waits=0, early="w"),
    "complex": Case(
        lambda: Calls(
            lambda self, h: torch.view_as_real(torch.complex(h, h) @ self.w),
            w=parameter(8, 4, dtype=torch.complex64),
        ),
        S,
        waits=1,
    ),
    "complex, weight first": Case(
        lambda: Calls(
            lambda self, h: torch.view_as_real(
                torch.addmm(self.b, self.w.t(), torch.complex(h, h), alpha=1 + 2j, beta=2j)
            ),
            w=parameter(4, 3, dtype=torch.complex64),
            b=parameter(3, 1, dtype=torch.complex64),
        ),
        x(4, 8),
        waits=1,
    ),
    "sparse by weight": Case(
        weights(lambda self, h: sparse() @ self.w.t() + h, 8, 40), x(40, 8), waits=1
    ),
    "broadcast": Case(
        lambda: Calls(lambda self, h: h * self.g + self.b, g=parameter(8), b=parameter(1)),
        S,
        waits=0,
        early="*",
    ),
    "weight without a module": Case(
        lambda: nn.Sequential(Calls(lambda self, h: F.linear(h, self.w), w=parameter(8, 8)), mlp()),
        S,
        waits=3,
    ),
}
"""Single operations."""
