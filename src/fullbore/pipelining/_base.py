"""What all schedule classes have in common: one pipeline of fullbore.runtime, made when needed."""

from __future__ import annotations

import warnings
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.constants import default_pg_timeout

from fullbore.errors import ParameterError
from fullbore.ir import Kind, Schedule
from fullbore.pipelining._actions import read_kind
from fullbore.pipelining._batch import Microbatches, Presplit, Whole, check_losses, prepare
from fullbore.pipelining._custom import Desk, _CustomFunctionProtocol, adapt
from fullbore.pipelining._dry import DryRunTransport
from fullbore.pipelining._dtensor import whole_loss
from fullbore.pipelining._served import Served
from fullbore.pipelining.microbatch import merge_chunks
from fullbore.pipelining.stage import adopt
from fullbore.runtime import LocalTransport, P2PTransport, Pipeline, StepOutput, Transport
from fullbore.runtime.custom import CUSTOMIZABLE
from fullbore.runtime.failure import describe
from fullbore.runtime.tree import Tree
from fullbore.verify import check_local_stages


class _PipelineSchedule(Served, ABC):
    """Runs a schedule on the stages of this process.

    The pipeline is made at the first step or evaluation, which all ranks call together: messages
    and checks among the ranks start there, and modules may be replaced until then.

    Attributes:
        rank, pp_group_size: this process's rank, and P.
        stage_index_to_group_rank: which rank holds which stage.
        scale_grads: differentiate the mean of the microbatches' losses (for a loss_fn that takes
            the mean), rather than their sum.
        share_losses: fill ``losses`` on every rank, not only on that of the last stage. The same
            on all ranks.
    """

    def __init__(
        self,
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        args_chunk_spec: Any = None,
        kwargs_chunk_spec: Mapping[str, Any] | None = None,
        output_merge_spec: Any = None,
        scale_grads: bool = True,
    ) -> None:
        number: object = n_microbatches
        if not isinstance(number, int) or number < 1:
            raise ParameterError(
                f"n_microbatches must be a whole number of at least 1, got {n_microbatches!r}"
            )
        self._n_microbatches, self._loss_fn, self.scale_grads = n_microbatches, loss_fn, scale_grads
        self._specs, self._output_merge_spec = (
            (args_chunk_spec, kwargs_chunk_spec),
            output_merge_spec,
        )
        self._has_backward, self.share_losses = loss_fn is not None, False
        self._backward_requires_autograd = True
        self._desk = Desk()
        self._functions: dict[Kind, _CustomFunctionProtocol] = {}
        self._losses: list[Any] | None = None
        self._pipeline: Pipeline | None = None
        self._modules: list[nn.Module] = []
        self._built_of: Any = None
        self._is_checked = False
        self.backward_counter = Counter()

    def _hold(self, stages: Sequence[Any]) -> None:
        """Take the stages of this process."""
        if not isinstance(stages, list | tuple) or not stages:
            raise ParameterError(
                f"{type(self).__name__} needs a list of at least one stage, got {stages!r}"
            )
        self._stages = [adopt(stage) for stage in stages]
        first = self._stages[0]
        self._num_stages, self.pp_group_size = first.num_stages, first.group_size
        self.n_local_stages = len(self._stages)
        # Whoever holds all stages plays all ranks: there is nobody to exchange anything with.
        self._local = len(self._stages) == self._num_stages
        self.rank = 0 if self._local else first.group_rank
        for stage in self._stages:
            stage.has_backward = self._has_backward

    def _place(self, schedule: Schedule) -> None:
        """Note where ``schedule`` has the stages.

        Raises:
            ParameterError: it is for another number of ranks, or for other stages on this one.
        """
        placement, name = schedule.placement, type(self).__name__
        if not self._local and placement.num_ranks != self.pp_group_size:
            raise ParameterError(
                f"{name}: the schedule has {placement.num_ranks} ranks, the process group "
                f"{self.pp_group_size}"
            )
        held = [stage.stage_index for stage in self._stages]
        for rank in range(placement.num_ranks) if self._local else (self.rank,):
            on_rank = [s for s in held if s in placement.stages_of(rank)] if self._local else held
            check_local_stages(schedule, rank, on_rank)
        self.pp_group_size = placement.num_ranks
        self.stage_index_to_group_rank = dict(enumerate(placement.ranks))
        for stage in self._stages:
            stage.stage_index_to_group_rank = self.stage_index_to_group_rank

    @property
    def loss_rank(self) -> int:
        """The rank that holds the last stage, and so the losses."""
        return self.stage_index_to_group_rank[self._num_stages - 1]

    @property
    def pipeline(self) -> Pipeline:
        """What runs the schedule: for ``clip_grad_norm_`` and whatever else of ``fullbore.runtime``
        wants one. The first step makes it, or, on all ranks together, asking for it."""
        return self._ready()

    @abstractmethod
    def _lowered(self) -> Schedule:
        """The schedule to run."""

    def step(
        self,
        *args: Tree,
        target: Tree = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        **kwargs: Tree,
    ) -> Tree:
        """Forward and backward over one batch; forward only if there is no loss function.

        Args:
            args: positional arguments of the first stage, a whole batch.
            target: of the whole batch; used on the rank of the last stage.
            losses: a list to be filled, on the rank of the last stage, with the microbatches'
                losses: detached, unscaled, in their order.
            return_outputs: give the last stage's outputs.
            loss_kwargs: further keyword arguments of the loss function.
            arg_mbs, kwarg_mbs, target_mbs: lists of microbatches, instead of a batch: a tuple, a
                dict and a target each.
            kwargs: keyword arguments of this process's stages.

        Returns:
            On the rank of the last stage the outputs, put together; None elsewhere.

        Raises:
            RuntimeError: gradients are switched off, or ``losses`` cannot be filled.
            ValueError: bad arguments, such as a wrong number of microbatches.
            TypeError: microbatches or losses are not in a list.
            fullbore.errors.ExecutionError: another rank failed. An exception of the user's own
                module keeps its type and gains a note.
        """
        return self._run(
            (args, kwargs, target),
            (arg_mbs, kwarg_mbs, target_mbs),
            losses,
            training=self._has_backward,
            return_outputs=return_outputs,
            loss_kwargs=loss_kwargs,
        )

    def eval(
        self,
        *args: Tree,
        target: Tree = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        **kwargs: Tree,
    ) -> Tree:
        """Forward only, without gradients; modules stay in the mode that they are in. There are
        losses where there is a target. Arguments, result and errors are those of ``step``."""
        return self._run(
            (args, kwargs, target),
            (arg_mbs, kwarg_mbs, target_mbs),
            losses,
            training=False,
            return_outputs=return_outputs,
            loss_kwargs=loss_kwargs,
        )

    def _step_microbatches(
        self,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> Tree:
        """As ``step``, with microbatches."""
        return self._run(
            ((), {}, None),
            (arg_mbs, kwarg_mbs, target_mbs),
            losses,
            training=self._has_backward,
            return_outputs=return_outputs,
            loss_kwargs=loss_kwargs,
        )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "_step_microbatches" in cls.__dict__:
            raise TypeError(
                f"{cls.__name__} has a loop of its own, _step_microbatches, which would never run: "
                "a schedule is an order of actions. Set pipeline_order or call "
                "_prepare_schedule_with_comms; custom functions compute single actions"
            )

    def register_custom_function(
        self, computation_type: Any, custom_function: _CustomFunctionProtocol
    ) -> None:
        """Let ``custom_function(action, ctx)`` compute all actions of one kind, also inside
        overlaps and in ``eval``. One that was registered before is replaced, with a warning.

        Args:
            computation_type: F, B, I, W, OVERLAP_F_B, UNSHARD, RESHARD or REDUCE_GRAD.
            custom_function: see ``docs/pipelining.md`` for what it works with.

        Raises:
            ValueError: the kind is none of these.
        """
        kind = read_kind(computation_type)
        if kind not in CUSTOMIZABLE:
            raise ParameterError(
                f"Invalid computation type {kind.name}: messages are the executor's. A custom "
                f"function computes {', '.join(k.name for k in CUSTOMIZABLE)}"
            )
        if kind in self._functions:
            warnings.warn(f"the custom function for {kind.name} is replaced", stacklevel=2)
        elif self._pipeline is not None:
            self._pipeline.register_custom_function(kind, adapt(self, kind))
        self._functions[kind] = custom_function

    def close(self) -> None:
        """Close the connections to the other ranks. The next step makes new ones, on all ranks."""
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None

    def realign(self) -> None:
        """Say, after a failed step, that the next calls of all ranks belong together; all ranks
        call it. See ``Pipeline.realign``."""
        if self._pipeline is not None:
            self._pipeline.realign()

    def _run(
        self,
        whole: Whole,
        presplit: Presplit,
        losses: list[Any] | None,
        *,
        training: bool,
        return_outputs: bool,
        loss_kwargs: dict[str, Any] | None,
    ) -> Tree:
        pipeline = self._ready()
        try:
            batch = self._prepare(pipeline, whole, presplit, losses, training=training)
        except BaseException as error:  # noqa: BLE001 - abandon raises it again
            pipeline.abandon(error)
        options: dict[str, Any] = batch._asdict()
        weights = options.pop("weights")
        if training:
            options["loss_weights"] = weights if self.scale_grads else (1.0,) * len(weights)
        else:
            options["keep_mode"] = True
        for stage in self._stages:
            stage._desk, stage.has_backward = self._desk, training
        self._losses = losses
        self.backward_counter.clear()
        handles = [h for s in self._stages for h in s.attend(first=not self._is_checked)]
        try:
            run = pipeline.step if training else pipeline.eval
            out = run(
                return_outputs=return_outputs,
                share_loss=self.share_losses,
                loss_kwargs=loss_kwargs,
                **options,
            )
        finally:
            self._losses = None
            for handle in handles:
                handle.remove()
        self._is_checked = True
        return self._give(out, losses)

    def _prepare(
        self,
        pipeline: Pipeline,
        whole: Whole,
        presplit: Presplit,
        losses: list[Any] | None,
        *,
        training: bool,
    ) -> Microbatches:
        if training and self._backward_requires_autograd and not torch.is_grad_enabled():
            raise RuntimeError(
                "step() runs backward, and gradients are switched off here; call eval(), or step() "
                "outside of no_grad()"
            )
        check_losses(losses)
        batch = prepare(whole, presplit, count=self._n_microbatches, specs=self._specs)
        lacks_losses = self._loss_fn is None or batch.target_mbs is None
        if pipeline.has_last and losses is not None and lacks_losses:
            raise RuntimeError(
                "losses can only be filled if there is a loss_fn, and a target on the rank of the "
                "last stage"
            )
        return batch

    def _give(self, out: StepOutput, losses: list[Any] | None) -> Tree:
        if losses is not None and out.losses is not None:
            losses[:] = out.losses
        return None if out.outputs is None else merge_chunks(out.outputs, self._output_merge_spec)

    def _ready(self) -> Pipeline:
        """The pipeline; made anew if a module was replaced since, or the order edited."""
        modules = [stage.submod for stage in self._stages]
        same = [*map(id, modules)] == [*map(id, self._modules)]
        if self._pipeline is not None and not same:
            if not self._local:
                raise RuntimeError(
                    f"{type(self).__name__}: a stage's submod was replaced after the first step. "
                    "Replace it before, or call close() on the schedule on all ranks first"
                )
            self.close()
        edits = self._edits()
        if edits != self._built_of:
            self.close()
        if self._pipeline is None:
            self._pipeline, self._modules, self._built_of = self._make(), modules, edits
        return self._pipeline

    def _edits(self) -> Any:
        """What the user has made of the order that is shown; None if it is ours."""
        return None

    def _make(self) -> Pipeline:
        transport = self._transport()
        # Unlike a pipeline, a schedule of torch's needs no closing.
        weakref.finalize(self, transport.close)
        try:
            schedule = self._lowered()
            self._place(schedule)
            pipeline = Pipeline(
                [stage.make() for stage in self._stages],
                schedule,
                transport=transport,
                loss_fn=None if self._loss_fn is None else whole_loss(self._loss_fn),
                backward_requires_autograd=self._backward_requires_autograd,
            )
        except BaseException as error:
            transport.abort(describe(error))
            raise
        for kind in self._functions:
            pipeline.register_custom_function(kind, adapt(self, kind))
        return pipeline

    def _transport(self) -> Transport:
        if self._local:
            return LocalTransport()
        if not dist.is_initialized():
            held = ", ".join(str(stage.stage_index) for stage in self._stages)
            raise ParameterError(
                f"{type(self).__name__} holds stages {held} of {self._num_stages}; for the others, "
                "call torch.distributed.init_process_group() before the stages are made, or give a "
                "multi-stage schedule all stages to run them in this process"
            )
        group = self._stages[0].group
        if dist.get_backend(group) != "fake":
            return P2PTransport(group, timeout=_timeout(group))
        inputs = {s.stage_index: s.declared_inputs for s in self._stages}
        devices = {s.stage_index: s.device for s in self._stages}
        return DryRunTransport(self.rank, inputs, devices=devices)


def _timeout(group: dist.ProcessGroup | None) -> float:
    """How long the group lets its members wait, in seconds."""
    chosen = dist.distributed_c10d._get_default_group() if group is None else group
    options = getattr(chosen._get_backend(chosen._device_types[0]), "options", None)
    # A backend from elsewhere need not have any.
    seconds: float = getattr(options, "_timeout", default_pg_timeout).total_seconds()
    return seconds
