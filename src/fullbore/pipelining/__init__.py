"""A drop-in for torch.distributed.pipelining: change the import, and the program runs on fullbore.

The tracer (``pipeline``, ``Pipe``, ``SplitPoint``, ``pipe_split``) is torch's own.
"""

from torch.distributed.pipelining import Pipe, SplitPoint, pipe_split, pipeline

from fullbore.pipelining.schedules import (
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)
from fullbore.pipelining.stage import PipelineStage, build_stage

__all__ = [
    "Pipe",
    "pipe_split",
    "SplitPoint",
    "pipeline",
    "PipelineStage",
    "build_stage",
    "Schedule1F1B",
    "ScheduleGPipe",
    "ScheduleInterleaved1F1B",
    "ScheduleLoopedBFS",
    "ScheduleInterleavedZeroBubble",
    "ScheduleZBVZeroBubble",
    "ScheduleDualPipeV",
]
