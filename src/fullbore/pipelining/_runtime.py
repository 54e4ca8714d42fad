"""The classes that schedules derive from: over one stage a rank, over several, and from a file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch.distributed.pipelining.schedules as theirs
from torch import Tensor

from fullbore.errors import ParameterError
from fullbore.formats import dumps, loads
from fullbore.ir import Form, Schedule
from fullbore.passes import lower
from fullbore.passes.unshard import InsertUnshard, Lookahead
from fullbore.pipelining._actions import Order, Shown, read_order, write_order
from fullbore.pipelining._base import _PipelineSchedule
from fullbore.pipelining._simulate import simulate
from fullbore.schedules import build
from fullbore.verify import check

CsvFormat = Literal["compute_only", "compute_comms"]


class PipelineScheduleSingle(_PipelineSchedule):
    """Base of the schedules with one stage a rank. A derived class gives its order by
    ``_get_pipeline_order``.

    Args:
        stage: this rank's stage.
        n_microbatches: M.
        loss_fn: ``loss_fn(output, target, **loss_kwargs)``. Without it, steps run forward only.
        args_chunk_spec, kwargs_chunk_spec: how to cut a batch; see ``microbatch``.
        output_merge_spec: how to put outputs together; see ``merge_chunks``.
        scale_grads: True for a loss_fn that takes the mean over a microbatch, False for a sum.

    Raises:
        ValueError: the process group has another number of ranks than there are stages.
    """

    _family = ""

    def __init__(
        self,
        stage: Any,
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        args_chunk_spec: Any = None,
        kwargs_chunk_spec: Mapping[str, Any] | None = None,
        output_merge_spec: Any = None,
        scale_grads: bool = True,
    ) -> None:
        super().__init__(
            n_microbatches,
            loss_fn,
            args_chunk_spec,
            kwargs_chunk_spec,
            output_merge_spec,
            scale_grads,
        )
        self._hold([stage])
        (self._stage,) = self._stages
        self._shown: Shown | None = None
        if not self._local and self.pp_group_size != self._num_stages:
            raise ParameterError(
                f"{type(self).__name__} runs one stage a rank; there are {self._num_stages} stages "
                f"and {self.pp_group_size} ranks. Use a multi-stage schedule"
            )
        self.stage_index_to_group_rank = {s: s for s in range(self._num_stages)}
        self.rank = self._stage.stage_index

    @property
    def pipeline_order(self) -> Order:
        """The order of computation, by rank."""
        if self._shown is None:
            self._shown = Shown(self._get_pipeline_order())
        return self._shown.order

    @pipeline_order.setter
    def pipeline_order(self, order: Order) -> None:
        self._shown = Shown(order, own=True)

    def _get_pipeline_order(self) -> Order:
        return write_order(self._built())

    def _edits(self) -> Any:
        return None if self._shown is None else self._shown.edits()

    def _built(self) -> Schedule:
        name = type(self).__name__
        if not self._family:
            raise ParameterError(f"{name} is abstract: use ScheduleGPipe, Schedule1F1B or another")
        return build(
            self._family, num_ranks=self._num_stages, num_microbatches=self._n_microbatches
        )

    def _lowered(self) -> Schedule:
        plain = type(self)._get_pipeline_order is PipelineScheduleSingle._get_pipeline_order
        if plain and not self._edits():
            return lower(self._built(), shard=True)
        return lower(
            read_order(
                self.pipeline_order,
                form=Form.COMPUTE,
                num_microbatches=self._n_microbatches,
                name=type(self).__name__,
            ),
            shard=True,
        )


class PipelineScheduleMulti(_PipelineSchedule):
    """Base of the schedules with several stages a rank; runs the order that it is given.

    Args:
        stages: this rank's stages; or all stages, to run all ranks in this process.
        n_microbatches: M.
        loss_fn: ``loss_fn(output, target, **loss_kwargs)``. Without it, steps run forward only.
        args_chunk_spec, kwargs_chunk_spec: how to cut a batch; see ``microbatch``.
        output_merge_spec: how to put outputs together; see ``merge_chunks``.
        use_full_backward: no longer used; the order says which backward runs.
        scale_grads: True for a loss_fn that takes the mean over a microbatch, False for a sum.
        backward_requires_autograd: False allows steps where gradients are switched off, for custom
            functions that compute all forwards and backwards without autograd.

    Raises:
        ValueError: the stages do not fit the schedule.
    """

    _lowering: Mapping[str, Any] = {}

    def __init__(
        self,
        stages: Sequence[Any],
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        args_chunk_spec: Any = None,
        kwargs_chunk_spec: Mapping[str, Any] | None = None,
        output_merge_spec: Any = None,
        use_full_backward: bool | None = None,
        scale_grads: bool = True,
        backward_requires_autograd: bool = True,
    ) -> None:
        super().__init__(
            n_microbatches,
            loss_fn,
            args_chunk_spec,
            kwargs_chunk_spec,
            output_merge_spec,
            scale_grads,
        )
        if use_full_backward is not None:
            warnings.warn(
                "'use_full_backward' is no longer supported; the order of actions says which "
                "backward runs. Stop passing it",
                DeprecationWarning,
                stacklevel=2,
            )
        self._backward_requires_autograd = backward_requires_autograd
        self._hold(stages)
        self.stage_index_to_group_rank = {
            s: s % self.pp_group_size for s in range(self._num_stages)
        }
        self._compute: Schedule | None = None
        self._shown: Shown | None = None

    @property
    def pipeline_order(self) -> Order:
        """The order of computation, by rank. It may be set or edited."""
        if self._shown is None:
            self._shown = Shown({} if self._compute is None else write_order(self._compute))
        return self._shown.order

    @pipeline_order.setter
    def pipeline_order(self, order: Order) -> None:
        self._renew(None, Shown(order, own=True))

    def _load_csv(self, filename: str, format: CsvFormat = "compute_only") -> None:  # noqa: A002 - torch's name
        """Take the order in a CSV file: a row a rank, a cell an action.

        Raises:
            AssertionError: ``format`` is not ``"compute_only"``.
            FormatError: the file holds no schedule.
            InvalidSchedule: it is not valid for this number of microbatches.
            ParameterError: it is for other stages, or another number of ranks.
        """
        if format != "compute_only":
            raise AssertionError(f'only the format "compute_only" is read here, not {format!r}')
        self._take(self._read_csv(filename, Form.COMPUTE))

    def _dump_csv(self, filename: str) -> None:
        """Write the order of computation to a CSV file."""
        _write_csv(self._computation(), filename)

    def _take(self, schedule: Schedule) -> None:
        """Run ``schedule`` from now on."""
        check(schedule)
        self._place(schedule)
        self._renew(schedule, None)

    def _renew(self, schedule: Schedule | None, shown: Shown | None) -> None:
        self._compute, self._shown = schedule, shown
        self.close()

    def _edits(self) -> Any:
        return None if self._shown is None else self._shown.edits()

    def _computation(self) -> Schedule:
        """The schedule in compute form, as the order has it now."""
        if self._shown is not None and self._edits():
            return self._read_order(self._shown.order, Form.COMPUTE)
        if self._compute is None:
            raise ParameterError(
                f"{type(self).__name__} has no schedule yet: call _load_csv(filename) or "
                "_prepare_schedule_with_comms(actions), or use one of the classes derived from it"
            )
        return self._compute

    def _lowered(self) -> Schedule:
        return lower(self._computation(), shard=True, **self._lowering)

    def _read_order(self, order: Mapping[int, Sequence[Any]], form: Form) -> Schedule:
        return read_order(
            order, form=form, num_microbatches=self._n_microbatches, name=type(self).__name__
        )

    def _read_csv(self, filename: str, form: Form) -> Schedule:
        path = Path(filename)
        return loads(
            path.read_text("utf-8"),
            format="csv",
            form=form,
            num_microbatches=self._n_microbatches,
            file=os.fspath(path),
        )


class _PipelineScheduleRuntime(PipelineScheduleMulti):
    """Runs an order that is given by a file or in memory, with its communication or without.

    Args:
        args, kwargs: those of ``PipelineScheduleMulti``, and
        defer_pp_recv: receive as late as possible, in the order in which the others send.
        max_active_stages: how many sharded stages are kept gathered.
        unshard_lookahead: how many stages ahead a gather starts: ``"full"`` for max_active_stages,
            ``"auto"`` for rank + 2, or a tuple of one number a rank.
    """

    def __init__(
        self,
        *args: Any,
        defer_pp_recv: bool = False,
        max_active_stages: int = 3,
        unshard_lookahead: str | tuple[int, ...] = "full",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        ahead = _lookahead(unshard_lookahead)
        InsertUnshard(max_active_stages, ahead)  # checks them
        self._lowering = {
            "sink": defer_pp_recv,
            "max_active_stages": max_active_stages,
            "lookahead": ahead,
        }
        self._with_comms: Schedule | None = None
        self._comms_shown: Shown | None = None

    @property
    def pipeline_order_with_comms(self) -> Order:
        """All actions, by rank. It may be set or edited; then it is what runs."""
        if self._comms_shown is None or (not self._comms_shown.edits() and super()._edits()):
            self._comms_shown = Shown(write_order(self._lowered()))
        return self._comms_shown.order

    @pipeline_order_with_comms.setter
    def pipeline_order_with_comms(self, order: Order) -> None:
        self._comms_shown = Shown(order, own=True)

    def _prepare_schedule_with_comms(
        self,
        actions: Mapping[int, Sequence[Any]],
        format: CsvFormat = "compute_only",  # noqa: A002 - torch's name
    ) -> None:
        """Take an order: of computation alone, or with its communication.

        Raises:
            NotImplementedError: there is no such format.
            ParameterError: the order is none, or for other stages or another number of ranks.
            InvalidSchedule: it is not valid.
        """
        self._take_form(self._read_order(actions, _form(format)))

    def _load_csv(self, filename: str, format: CsvFormat = "compute_only") -> None:  # noqa: A002 - torch's name
        """Take the order in a CSV file, of computation alone, or with its communication.

        Raises:
            NotImplementedError: there is no such format.
            FormatError, ParameterError, InvalidSchedule: as ``PipelineScheduleMulti._load_csv``.
        """
        self._take_form(self._read_csv(filename, _form(format)))

    def _dump_csv(self, filename: str, format: CsvFormat = "compute_comms") -> None:  # noqa: A002 - torch's name
        """Write the order to a CSV file, without or with its communication.

        Raises:
            NotImplementedError: there is no such format.
        """
        form = _form(format)
        _write_csv(self._computation() if form is Form.COMPUTE else self._lowered(), filename)

    def _simulate(self) -> Order:
        """What each rank does at each step if every action takes one; None where it waits."""
        return simulate(self._lowered())

    def _take_form(self, schedule: Schedule) -> None:
        self._take(schedule)
        if schedule.form is Form.LOWERED:
            self._compute, self._with_comms = None, schedule

    def _renew(self, schedule: Schedule | None, shown: Shown | None) -> None:
        self._with_comms = self._comms_shown = None
        super()._renew(schedule, shown)

    def _edits(self) -> Any:
        comms = None if self._comms_shown is None else self._comms_shown.edits()
        return comms or super()._edits()

    def _lowered(self) -> Schedule:
        if self._comms_shown is not None and self._comms_shown.edits():
            return self._read_order(self._comms_shown.order, Form.LOWERED)
        return super()._lowered() if self._with_comms is None else self._with_comms


def _form(format: str) -> Form:  # noqa: A002 - torch's name
    forms = {"compute_only": Form.COMPUTE, "compute_comms": Form.LOWERED}
    if format not in forms:
        raise NotImplementedError(f"{format=} is not implemented; there are {', '.join(forms)}")
    return forms[format]


def _lookahead(wanted: str | tuple[int, ...]) -> Lookahead:
    if wanted in ("full", "auto"):
        return "auto" if wanted == "auto" else None
    if isinstance(wanted, list | tuple):
        return tuple(wanted)
    raise ParameterError(
        f"unshard_lookahead must be 'full', 'auto' or a tuple of numbers, got {wanted!r}"
    )


def _write_csv(schedule: Schedule, filename: str) -> None:
    Path(filename).write_text(dumps(schedule, format="csv"), "utf-8", newline="")


# Code that still imports a class from torch, to ask what a schedule is, gets the same answer.
theirs._PipelineSchedule.register(_PipelineSchedule)  # type: ignore[type-abstract]
theirs.PipelineScheduleSingle.register(PipelineScheduleSingle)
theirs.PipelineScheduleMulti.register(PipelineScheduleMulti)
theirs._PipelineScheduleRuntime.register(_PipelineScheduleRuntime)
