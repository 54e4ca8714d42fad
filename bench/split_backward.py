"""What splitting a backward costs, beside PyTorch's own split.

    .venv/bin/python -m bench.split_backward [--repetitions 60] [--only d256]

Each repetition sends one microbatch through a stage four times, in turning order: with a full
backward, with PyTorch's, with fullbore's I and W, and with PyTorch's. A ratio is of times of one
repetition; the table has the median of the ratios and their quartiles.
Times are processor time of the only thread, which other work on the machine disturbs least. B in
every ratio is fullbore's full backward, the fastest of the two.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from time import thread_time

import torch
import torch.nn.functional as F
from bench.common import Sample, provenance, ratios, table
from torch import Tensor, nn
from torch.distributed.pipelining._backward import (
    stage_backward,
    stage_backward_input,
    stage_backward_weight,
)

from fullbore.runtime.backward import SplitBackward, full_backward

WARM_UP = 5
# Width, rows and tokens of a microbatch, number of blocks.
BLOCKS = [
    (64, 1, 32, 2),
    (64, 1, 32, 4),
    (256, 2, 128, 2),
    (256, 2, 128, 4),
    (512, 1, 256, 2),
    (512, 1, 256, 4),
]

Times = tuple[float, ...]
"""Seconds of the forward, and of the backward or its two parts."""


class Block(nn.Module):
    """A causal transformer block with heads of width 64."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (rows, tokens, width) to the same shape."""
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return torch.add(x, self.down(F.gelu(self.up(self.norm2(x)))))


@dataclass
class Subject:
    """A stage and what goes through it."""

    name: str
    module: nn.Module
    x: Tensor

    def forward(self) -> tuple[Tensor, Tensor, float]:
        """Input, output and seconds of one forward."""
        x = self.x.clone().requires_grad_()
        start = thread_time()
        y = self.module(x)
        return x, y, thread_time() - start


def subjects() -> list[Subject]:
    torch.manual_seed(0)
    tiny = Subject(
        "tiny: linear 8 and tanh, 1 row",
        nn.Sequential(nn.Linear(8, 8), nn.Tanh()),
        torch.randn(1, 8),
    )
    found = [tiny]
    for width, rows, tokens, count in BLOCKS:
        module = nn.Sequential(*(Block(width) for _ in range(count)))
        name = f"d{width}, {rows}x{tokens} tokens, {count} blocks"
        found.append(Subject(name, module, torch.randn(rows, tokens, width)))
    return found


def whole(subject: Subject, dy: Tensor) -> Times:
    _, y, forward = subject.forward()
    start = thread_time()
    full_backward([y], [dy])
    return forward, thread_time() - start


def whole_torch(subject: Subject, dy: Tensor) -> Times:
    x, y, forward = subject.forward()
    start = thread_time()
    stage_backward([y], [dy], [x])
    return forward, thread_time() - start


def split(subject: Subject, dy: Tensor) -> Times:
    x, y, forward = subject.forward()
    start = thread_time()
    both = SplitBackward([y], [x])
    both.input_backward([dy])
    middle = thread_time()
    both.weight_backward()
    return forward, middle - start, thread_time() - middle


def split_torch(subject: Subject, dy: Tensor) -> Times:
    x, y, forward = subject.forward()
    start = thread_time()
    _, groups = stage_backward_input([y], [dy], [x], subject.module.parameters())
    middle = thread_time()
    stage_backward_weight(subject.module.parameters(), groups)
    return forward, middle - start, thread_time() - middle


WAYS: list[Callable[[Subject, Tensor], Times]] = [whole, whole_torch, split, split_torch]


def measure(subject: Subject, repetitions: int) -> list[list[Times]]:
    """For every way, the times of each repetition."""
    dy = torch.randn_like(subject.module(subject.x))
    times: list[list[Times]] = [[] for _ in WAYS]
    for repetition in range(WARM_UP + repetitions):
        for turn in range(len(WAYS)):
            way = (repetition + turn) % len(WAYS)
            times[way].append(WAYS[way](subject, dy))
    return [found[WARM_UP:] for found in times]


def row(subject: Subject, times: list[list[Times]]) -> list[str]:
    f, b = ([t[part] for t in times[0]] for part in (0, 1))
    cells = [subject.name, *(f"{Sample(v).median * 1e3:.3f}" for v in (f, b))]
    cells.append(ratios([t[1] for t in times[1]], b).text(2))
    both = [forward + backward for forward, backward in zip(f, b, strict=True)]
    for found in times[2:]:
        cells.append(ratios([t[1] + t[2] for t in found], b).text(2))
        cells.append(ratios([t[1] for t in found], b).text(2))
        cells.append(ratios([t[2] for t in found], b).text(2))
        cells.append(ratios([sum(t) for t in found], both).text(2))
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repetitions", type=int, default=60)
    parser.add_argument("--only", default="", help="a stage whose name starts with this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("\n".join(["one thread", *provenance()]), "\n")
    names = ["(I+W)/B", "I/B", "W/B", "(F+I+W)/(F+B)"]
    head = ["stage", "F ms", "B ms", "torch B/B", *names, *(f"torch {name}" for name in names)]
    chosen = [subject for subject in subjects() if subject.name.startswith(options.only)]
    print(table(head, [row(subject, measure(subject, options.repetitions)) for subject in chosen]))


if __name__ == "__main__":
    main()
