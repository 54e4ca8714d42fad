"""What tests of the controller have in common."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from tests.reference import WIDTH, Result, linear_tanh, mse, reference
from torch import Tensor, nn

from fullbore.controller import PipelineParallelism

ROWS = 8
MICROBATCHES = 4

sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def by_stage(stage: int, name: str) -> str:
    """Names of the unsplit model, where each stage's are its own."""
    return f"stages.{stage}.{name}"


def data(seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(ROWS, WIDTH, generator=generator) for _ in range(2))  # type: ignore[return-value]


def wanted(modules: Sequence[nn.Module], x: Tensor, y: Tensor) -> Result:
    return reference(
        modules,
        [(part,) for part in x.tensor_split(MICROBATCHES)],
        y.tensor_split(MICROBATCHES),
        weights=[1 / MICROBATCHES] * MICROBATCHES,
    )


def make(num_ranks: Any, stages: Sequence[Any], **options: Any) -> PipelineParallelism:
    given: dict[str, Any] = {"schedule": "1f1b", "loss_fn": mse, "names": by_stage, **options}
    size = ROWS // MICROBATCHES
    return PipelineParallelism(num_ranks, stages, batch_size=ROWS, microbatch_size=size, **given)


def build_stage(seed: int, width: int = WIDTH) -> nn.Module:
    """What a ``Factory`` may build."""
    return linear_tanh(1, seed=seed, width=width)[0]
