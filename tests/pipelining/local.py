"""Schedules of all ranks in one process."""

from __future__ import annotations

from typing import Any

from tests.pipelining.programs import layers, mean_square
from torch import nn

from fullbore.pipelining import PipelineStage
from fullbore.pipelining.microbatch import TensorChunkSpec
from fullbore.pipelining.schedules import get_schedule_class

MULTI = ["LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]


def stages(modules: list[nn.Module]) -> list[PipelineStage]:
    return [PipelineStage(m, i, len(modules), "cpu") for i, m in enumerate(modules)]


def make(name: str, count: int = 4, modules: list[nn.Module] | None = None, **options: Any) -> Any:
    options.setdefault("loss_fn", mean_square)
    return get_schedule_class(name)(stages(modules or layers(4)), count, **options)


def spec(dim: int) -> TensorChunkSpec:
    return TensorChunkSpec(dim)
