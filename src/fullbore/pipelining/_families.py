"""One class for each schedule, under torch's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from fullbore.errors import ParameterError
from fullbore.ir import Schedule
from fullbore.pipelining._runtime import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    _PipelineScheduleRuntime,
)
from fullbore.schedules import build, find


class ScheduleGPipe(PipelineScheduleSingle):
    """All forwards, then all backwards."""

    _family = "gpipe"


class Schedule1F1B(PipelineScheduleSingle):
    """One forward, one backward. Takes any number of microbatches."""

    _family = "1f1b"


class _ScheduleForwardOnly(PipelineScheduleSingle):
    """Forwards only."""

    _family = "forward_only"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._has_backward = False


class _Family(_PipelineScheduleRuntime):
    """A schedule that follows from its size.

    In a process that holds all stages and has no group of several ranks, there are two stages a
    rank, or one rank if their number is odd.
    """

    _family: str

    def _follow(self) -> None:
        """Make the schedule."""
        shape = find(self._family).shape
        ranks, name = self.pp_group_size, type(self).__name__
        if self._local and ranks == 1:
            ranks = self._num_stages // 2 if self._num_stages % 2 == 0 else 1
        if self._num_stages % ranks or (shape == "vee" and self._num_stages != 2 * ranks):
            need = "exactly 2 stages" if shape == "vee" else "the same number of stages"
            raise ParameterError(
                f"{name} requires {need} on each rank; there are {self._num_stages} stages on "
                f"{ranks} ranks"
            )
        schedule: Schedule = build(
            self._family,
            num_ranks=ranks,
            num_microbatches=self._n_microbatches,
            stages_per_rank=self._num_stages // ranks,
        )
        self._place(schedule)
        self._compute = schedule


class _FamilyOfMany(_Family):
    """With the arguments that most of torch's classes have.

    Args:
        stages: this rank's stages; or all stages, to run all ranks in this process.
        n_microbatches: M, any number.
        loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec, scale_grads,
            backward_requires_autograd: see ``PipelineScheduleMulti``.
        defer_pp_recv, max_active_stages, unshard_lookahead: see ``_PipelineScheduleRuntime``.

    Raises:
        ValueError: the stages do not fit the schedule.
    """

    def __init__(
        self,
        stages: Sequence[Any],
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        args_chunk_spec: Any = None,
        kwargs_chunk_spec: Mapping[str, Any] | None = None,
        output_merge_spec: Any = None,
        scale_grads: bool = True,
        backward_requires_autograd: bool = True,
        defer_pp_recv: bool = False,
        max_active_stages: int = 3,
        unshard_lookahead: str | tuple[int, ...] = "full",
    ) -> None:
        super().__init__(
            stages,
            n_microbatches,
            loss_fn,
            args_chunk_spec,
            kwargs_chunk_spec,
            output_merge_spec,
            scale_grads=scale_grads,
            backward_requires_autograd=backward_requires_autograd,
            defer_pp_recv=defer_pp_recv,
            max_active_stages=max_active_stages,
            unshard_lookahead=unshard_lookahead,
        )
        self._follow()


class ScheduleLoopedBFS(_Family):
    """All forwards of a stage, then of the next; backwards in the reverse order.

    Args and errors are those of ``ScheduleInterleaved1F1B``, but for the chunk specs.
    """

    _family = "looped_bfs"

    def __init__(
        self,
        stages: Sequence[Any],
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        output_merge_spec: Any = None,
        scale_grads: bool = True,
        backward_requires_autograd: bool = True,
        defer_pp_recv: bool = False,
        max_active_stages: int = 3,
        unshard_lookahead: str | tuple[int, ...] = "full",
    ) -> None:
        super().__init__(
            stages,
            n_microbatches,
            loss_fn,
            output_merge_spec=output_merge_spec,
            scale_grads=scale_grads,
            backward_requires_autograd=backward_requires_autograd,
            defer_pp_recv=defer_pp_recv,
            max_active_stages=max_active_stages,
            unshard_lookahead=unshard_lookahead,
        )
        self._follow()


class ScheduleInterleaved1F1B(_FamilyOfMany):
    """One forward, one backward, in rounds over a rank's stages."""

    _family = "interleaved_1f1b"


class ScheduleInterleavedZeroBubble(_FamilyOfMany):
    """Interleaved 1F1B with the backward split in two."""

    _family = "interleaved_zero_bubble"


class ScheduleZBVZeroBubble(_FamilyOfMany):
    """Two stages a rank in the shape of a V, with the backward split in two."""

    _family = "zbv_zero_bubble"


class ScheduleDualPipeV(_FamilyOfMany):
    """Two stages a rank in the shape of a V, with overlapped forwards and backwards."""

    _family = "dualpipev"


ScheduleClass = type[PipelineScheduleSingle] | type[PipelineScheduleMulti]

_CLASSES: Mapping[str, ScheduleClass] = {
    "1F1B": Schedule1F1B,
    "Interleaved1F1B": ScheduleInterleaved1F1B,
    "GPipe": ScheduleGPipe,
    "LoopedBFS": ScheduleLoopedBFS,
    "InterleavedZeroBubble": ScheduleInterleavedZeroBubble,
    "PipelineScheduleSingle": PipelineScheduleSingle,
    "PipelineScheduleMulti": PipelineScheduleMulti,
    "ZBVZeroBubble": ScheduleZBVZeroBubble,
    "DualPipeV": ScheduleDualPipeV,
    "_PipelineScheduleRuntime": _PipelineScheduleRuntime,
}


def get_schedule_class(schedule_name: str) -> ScheduleClass:
    """The class of that name, in any case.

    Raises:
        ValueError: there is none.
        TypeError: it is no string.
    """
    if not isinstance(schedule_name, str):
        raise TypeError(f"the name of a schedule is a string, got {schedule_name!r}")
    found = {name.lower(): kind for name, kind in _CLASSES.items()}.get(schedule_name.lower())
    if found is None:
        raise ParameterError(
            f"there is no schedule {schedule_name!r}; there are {', '.join(_CLASSES)}"
        )
    return found
