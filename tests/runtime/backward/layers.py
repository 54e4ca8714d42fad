"""Stages made of torch's own layers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from tests.runtime.backward.cases import Calls, Case, Cases, freeze, mlp, parameter, tokens, x
from torch import Tensor, nn
from torch.nn.utils import parametrizations

WIDE = x(2, 5, 16)
NORMS = "norm1 norm2"


def encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(16, 4, 32, **{"dropout": 0.0, **options})


def block(self: Calls, h: Tensor) -> Any:
    """A transformer block on scaled_dot_product_attention."""
    q, k, v = self.qkv(self.norm(h)).view(2, 5, 3, 4, 4).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return h + self.out(mixed.transpose(1, 2).reshape(2, 5, 16))


def mixture(self: Calls, h: Tensor) -> Any:
    """Every row goes to the expert that the router likes best."""
    weights = self.router(h).softmax(-1)
    best = weights.argmax(-1)
    out = torch.zeros_like(h)
    for index, expert in enumerate(self.experts):
        rows = (best == index).nonzero()[:, 0]
        out = out.index_add(0, rows, expert(h[rows]) * weights[rows, index : index + 1])
    return out


def lstm_cell(self: Calls, h: Tensor) -> Any:
    new, cell = self.cell(h, (self.start(h), self.start(h).tanh()))
    return new + cell


LAYERS: Cases = {
    "linears": Case(mlp, x(4, 8), waits=2),
    "linears, three dimensions": Case(mlp, x(2, 4, 8), waits=2),
    "linear, one dimension": Case(lambda: nn.Linear(8, 8), x(8), waits=1),
    "linear without rows": Case(lambda: nn.Linear(8, 8), x(0, 8), waits=1),
    "linear, transposed input": Case(
        lambda: Calls(lambda self, h: self.a(h.transpose(0, 1)), a=nn.Linear(8, 8)),
        x(4, 2, 8),
        waits=1,
        early="a.bias",
    ),
    "linears of bfloat16": Case(
        lambda: mlp().bfloat16(), lambda: [torch.randn(4, 8).bfloat16()], waits=2
    ),
    # A bias that torch adds after the product does not wait: batch_first transposes the input.
    "encoder": Case(
        lambda: encoder(batch_first=True, dropout=0.1),
        WIDE,
        waits=4,
        early=f"{NORMS} self_attn.in_proj_bias",
    ),
    "encoder, norm first": Case(lambda: encoder(norm_first=True), WIDE, waits=4, early=NORMS),
    "self-attention": Case(
        lambda: Calls(
            lambda self, h: self.a(h, h, h, need_weights=False)[0], a=nn.MultiheadAttention(16, 4)
        ),
        WIDE,
        waits=2,
    ),
    "self-attention with weights": Case(
        lambda: Calls(
            lambda self, h: self.a(h, h, h)[0], a=nn.MultiheadAttention(16, 4, batch_first=True)
        ),
        WIDE,
        waits=2,
        early="a.in_proj_bias",
    ),
    "cross-attention": Case(
        lambda: Calls(
            lambda self, h, other: self.a(h, other, other)[0],
            a=nn.MultiheadAttention(16, 4, kdim=8, vdim=8),
        ),
        lambda: [torch.randn(2, 5, 16), torch.randn(3, 5, 8)],
        waits=4,
    ),
    "block": Case(
        lambda: Calls(block, norm=nn.LayerNorm(16), qkv=nn.Linear(16, 48), out=nn.Linear(16, 16)),
        WIDE,
        waits=2,
        early="norm",
    ),
    "rms norm": Case(
        lambda: nn.Sequential(nn.RMSNorm(8), nn.Linear(8, 8)), x(4, 8), waits=1, early="0"
    ),
    "mixture of experts": Case(
        lambda: Calls(
            mixture,
            router=nn.Linear(8, 3),
            experts=nn.ModuleList(nn.Linear(8, 8) for _ in range(3)),
        ),
        x(6, 8),
        waits=4,
    ),
    "gru": Case(lambda: Calls(lambda self, h: self.a(h)[0], a=nn.GRU(8, 8)), x(3, 2, 8), waits=4),
    "lstm cell": Case(
        lambda: Calls(lstm_cell, cell=nn.LSTMCell(8, 8), start=nn.Linear(8, 8)), x(3, 8), waits=4
    ),
    "lstm, two layers": Case(
        lambda: Calls(lambda self, h: self.a(h)[0], a=nn.LSTM(8, 8, 2)), x(3, 2, 8), 0, early="*"
    ),
    "conv1d": Case(
        lambda: nn.Sequential(
            nn.Conv1d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv1d(6, 6, 3, groups=2, stride=2)
        ),
        x(2, 3, 16),
        waits=2,
    ),
    "conv2d": Case(
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.ConvTranspose2d(6, 4, 3, bias=False),
        ),
        x(2, 3, 8, 8),
        waits=2,
        early="1",
    ),
    "conv3d": Case(
        lambda: nn.Conv3d(2, 3, (1, 2, 3), dilation=(1, 2, 1)), x(2, 2, 3, 5, 4), waits=1
    ),
    "conv2d, channels last": Case(
        lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        lambda: [torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)],
        waits=1,
    ),
    "conv2d of a kernel that the input makes": Case(
        lambda: Calls(lambda self, k: F.conv2d(self.image, k), image=parameter(2, 3, 8, 8)),
        x(4, 3, 3, 3),
        waits=1,
    ),
    "bilinear": Case(
        lambda: Calls(lambda self, h: self.a(h, h), a=nn.Bilinear(8, 8, 4)), x(4, 8), 0, early="*"
    ),
    "weight norm": Case(
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 16)), nn.Linear(16, 8)),
        x(4, 8),
        waits=2,
    ),
    "spectral norm": Case(
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(8, 16)), nn.Linear(16, 8)),
        x(4, 8),
        waits=2,
    ),
    "orthogonal": Case(
        lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(8, 8)), nn.Linear(8, 8)),
        x(4, 8),
        waits=3,
    ),
    "relu in place": Case(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 8)),
        x(4, 8),
        waits=2,
    ),
}
"""Fed by another stage."""

FIRST: Cases = {
    "embedding": Case(lambda: nn.Embedding(11, 8, padding_idx=2), tokens, waits=1),
    "embedding, padding from the end": Case(
        lambda: nn.Embedding(11, 8, padding_idx=-1), lambda: [torch.tensor([[1, 10], [10, 3]])], 1
    ),
    "embedding, by frequency": Case(
        lambda: nn.Embedding(11, 8, scale_grad_by_freq=True), tokens, waits=1
    ),
    "embedding and layers": Case(
        lambda: nn.Sequential(
            nn.Embedding(11, 8), nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)
        ),
        tokens,
        waits=3,
        early="2",
    ),
    "embedding, sparse": Case(
        lambda: nn.Sequential(nn.Embedding(11, 8, sparse=True), nn.Linear(8, 8)), tokens, waits=2
    ),
    "embedding and positions": Case(
        lambda: Calls(
            lambda self, ids: self.a(self.table(ids) + self.places),
            table=nn.Embedding(11, 8),
            places=parameter(5, 8),
            a=nn.Linear(8, 8),
        ),
        tokens,
        waits=2,
        early="places",
    ),
    "embedding bag": Case(
        lambda: nn.Sequential(nn.EmbeddingBag(11, 8), nn.Linear(8, 8)), tokens, 0, early="*"
    ),
    "embedding, frozen": Case(
        lambda: freeze(nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8)), "0."), tokens, waits=1
    ),
    "linears on the batch": Case(mlp, x(4, 8), waits=2, raw=True),
    "conv2d on the batch": Case(
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3)),
        x(2, 3, 8, 8),
        waits=2,
        early="1",
        raw=True,
    ),
    "layer norm on the batch": Case(
        lambda: nn.Sequential(nn.LayerNorm(8), mlp()), x(4, 8), waits=0, early="*", raw=True
    ),
}
"""Fed by a batch that needs no gradient."""
