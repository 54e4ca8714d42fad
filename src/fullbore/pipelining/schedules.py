"""The names of torch.distributed.pipelining.schedules."""

from collections.abc import Iterable
from typing import Any

from fullbore.pipelining._actions import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
    OVERLAP_F_B,
    RECV_B,
    RECV_F,
    REDUCE_GRAD,
    RESHARD,
    SEND_B,
    SEND_F,
    UNSHARD,
    B,
    F,
    I,
    W,
    _Action,
    _ComputationType,
)
from fullbore.pipelining._base import _PipelineSchedule
from fullbore.pipelining._custom import _CustomFunctionProtocol, _PipelineContext
from fullbore.pipelining._families import (
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
    _ScheduleForwardOnly,
    get_schedule_class,
)
from fullbore.pipelining._runtime import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    _PipelineScheduleRuntime,
)
from fullbore.pipelining._simulate import _format_pipeline_order, _simulate_comms_compute

__all__ = [
    "get_schedule_class",
    "PipelineScheduleSingle",
    "PipelineScheduleMulti",
    "Schedule1F1B",
    "ScheduleGPipe",
    "ScheduleInterleaved1F1B",
    "ScheduleLoopedBFS",
    "ScheduleInterleavedZeroBubble",
    "ScheduleZBVZeroBubble",
    "ScheduleDualPipeV",
    "BACKWARD_INPUT",
    "BACKWARD_WEIGHT",
    "FORWARD",
    "FULL_BACKWARD",
    "OVERLAP_F_B",
    "RECV_B",
    "RECV_F",
    "REDUCE_GRAD",
    "RESHARD",
    "SEND_B",
    "SEND_F",
    "UNSHARD",
    "B",
    "F",
    "I",
    "W",
    "_Action",
    "_ComputationType",
    "_CustomFunctionProtocol",
    "_PipelineContext",
    "_PipelineSchedule",
    "_PipelineScheduleRuntime",
    "_ScheduleForwardOnly",
    "_format_pipeline_order",
    "_simulate_comms_compute",
    "_wait_batch_p2p",
]


def _wait_batch_p2p(work: Iterable[Any]) -> None:
    """Wait for each of ``work``; what a schedule hands to a custom function is there already."""
    for one in work:
        one.wait()
