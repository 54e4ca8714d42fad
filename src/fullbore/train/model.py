"""A byte-level GPT that can be built whole or in parts.

A part holds a contiguous range of the layers under the names that they have in the whole model, and
every parameter is drawn from a generator of its own name: the parts of any split are, bit for bit,
the whole.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from fullbore.errors import ParameterError
from fullbore.train.settings import VOCABULARY, ModelSize


class Embedding(nn.Module):
    """Bytes to vectors: ``(rows, length)`` integers to ``(rows, length, width)``."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, size.width)
        self.positions = nn.Embedding(size.sequence_length, size.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Adds to each byte's vector that of its position."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        embedded: Tensor = self.tokens(tokens) + self.positions(places)
        return embedded


class Attention(nn.Module):
    """Causal self-attention over ``(rows, length, width)``."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.heads = size.heads
        # A bias of the keys has no influence on the result: its gradient is rounding noise.
        self.queries_keys_values = nn.Linear(size.width, 3 * size.width, bias=False)
        self.output = nn.Linear(size.width, size.width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Every position attends to itself and to those before it."""
        joined = self.queries_keys_values(hidden)
        split = joined.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        queries, keys, values = split.unbind(0)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        attended: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return attended


class Block(nn.Module):
    """One layer: attention and a two-layer perceptron, each on the normalised sum so far."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size.width)
        self.attention = Attention(size)
        self.mlp_norm = nn.LayerNorm(size.width)
        self.mlp = nn.Sequential(
            nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Keeps the shape."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        added: Tensor = hidden + self.mlp(self.mlp_norm(hidden))
        return added


class GPT(nn.Module):
    """The layers ``layers`` of the model: with the embedding if the first is among them, with the
    head if the last is.

    The whole model maps bytes, ``(rows, length)`` integers, to ``(rows, length, 256)`` logits of
    the byte that follows each.

    Args:
        size: of the whole model.
        layers: which layers, contiguous; None for all.
    """

    def __init__(self, size: ModelSize, layers: range | None = None) -> None:
        super().__init__()
        layers = range(size.layers) if layers is None else layers
        self.embedding = Embedding(size) if layers.start == 0 else None
        self.blocks = nn.ModuleDict({str(layer): Block(size) for layer in layers})
        ends = layers.stop == size.layers
        self.norm = nn.LayerNorm(size.width) if ends else None
        self.head = nn.Linear(size.width, VOCABULARY, bias=False) if ends else None

    def forward(self, hidden: Tensor) -> Tensor:
        """Bytes in where the embedding is, hidden vectors elsewhere; logits out of the head."""
        if self.embedding is not None:
            hidden = self.embedding(hidden)
        for block in self.blocks.values():
            hidden = block(hidden)
        if self.norm is None or self.head is None:
            return hidden
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def build_model(
    size: ModelSize,
    layers: range | None = None,
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> GPT:
    """The model, or some of its layers, with the weights that ``seed`` gives.

    Weights are normal with the deviation 0.02 of GPT-2 (Radford et al. 2019, section 2.3), those
    that end a residual branch divided by the root of the number of branches; biases are 0, norms 1.
    """
    # Parameters are made once, by the loop below, not first by the modules' own rules.
    with torch.device("meta"):
        model = GPT(size, layers)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _initialise(name, parameter, seed=seed, branches=2 * size.layers)
    return model.to(device)


def split_layers(
    size: ModelSize, num_stages: int, split: Sequence[int] | None = None
) -> list[range]:
    """The layers of each stage: as many as ``split`` says, else their numbers differ by one at
    most.

    Raises:
        ParameterError: there are fewer layers than stages, or ``split`` is for other numbers.
    """
    if split is not None:
        if len(split) != num_stages or sum(split) != size.layers or min(split) < 1:
            raise ParameterError(
                f"--split {','.join(map(str, split))}: give each of the {num_stages} stages "
                f"some of the {size.layers} layers"
            )
        return [range(end - own, end) for own, end in zip(split, accumulate(split), strict=True)]
    if size.layers < num_stages:
        raise ParameterError(
            f"the schedule has {num_stages} stages, so the model needs at least {num_stages} "
            f"layers; it has {size.layers}. Set --layers {num_stages}, or use fewer stages"
        )
    base, more = divmod(size.layers, num_stages)
    starts = [stage * base + min(stage, more) for stage in range(num_stages + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def loss_fn(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy over all positions, in nats a byte.

    Args:
        logits: ``(rows, length, 256)``.
        target: ``(rows, length)``, the bytes that follow.
    """
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def _initialise(name: str, parameter: Tensor, *, seed: int, branches: int) -> None:
    if name.endswith("bias"):
        parameter.zero_()
        return
    if "norm" in name:
        parameter.fill_(1.0)
        return
    ends_branch = name.endswith(("attention.output.weight", "mlp.2.weight"))
    deviation = 0.02 / math.sqrt(branches) if ends_branch else 0.02
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=7).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest))
    parameter.normal_(0.0, deviation, generator=generator)
