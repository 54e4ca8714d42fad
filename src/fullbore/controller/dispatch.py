"""What a script drives a schedule with, under Monarch's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from fullbore.controller.batch import cut, share
from fullbore.controller.host import HostedStage
from fullbore.controller.remote_model import RemoteModel
from fullbore.controller.source import count_microbatches, find_schedule
from fullbore.controller.stepping import Stepping, as_actions
from fullbore.errors import ParameterError
from fullbore.ir import Action, Schedule
from fullbore.runtime import StepOutput
from fullbore.runtime.custom import LossFn
from fullbore.runtime.microbatch import Batch, Specs, presplit_batch
from fullbore.runtime.tree import Tree

Programs = dict[int, list[Action]]
"""The actions of each rank."""


class Dispatching(RemoteModel):
    """Runs a schedule action by action.

    Attributes:
        schedule: what runs, lowered.
        batch_size, microbatch_size, num_microbatches: rows of a batch and a microbatch, and M.
        loss_fn: gives the loss of a microbatch.
        loss_list: where it is a list: after each run what each microbatch adds to the batch's loss.
        loss: of the last run.
        last: what the last run or evaluation gave.
    """

    schedule: Schedule
    batch_size: int
    microbatch_size: int
    num_microbatches: int
    loss_fn: LossFn | None
    loss_list: list[Tensor] | None
    loss: Tensor | None = None
    last: StepOutput | None = None
    _processes: Sequence[Sequence[int]]
    _specs: Specs
    _recovers: bool
    _stepping: Stepping | None = None

    @property
    def num_model_chunks(self) -> int:
        """S."""
        return self.schedule.num_stages

    @property
    def pipeline_parallel_size(self) -> int:
        """P."""
        return self.schedule.num_ranks

    @property
    def loss_layer(self) -> LossFn | None:
        """``loss_fn``."""
        return self.loss_fn

    @property
    def all_rank_actions(self) -> Programs:
        """The actions of each rank, a copy."""
        return _programs(self.schedule)

    @property
    def stage_to_rank_map(self) -> dict[int, int]:
        """The rank of each stage."""
        return dict(enumerate(self.schedule.placement.ranks))

    def stage_to_rank(self, stage_idx: int) -> int:
        """The rank of a stage.

        Raises:
            ParameterError: there is no such stage.
        """
        return self.schedule.placement.rank_of(stage_idx)

    @staticmethod
    def generate_pipeline_ir_schedule(
        schedule_name: str,
        total_num_model_chunks: int,
        pipeline_parallel_size: int,
        batch_size: int,
        microbatch_size: int,
    ) -> tuple[Programs, dict[int, int]]:
        """A schedule for these numbers, lowered: the actions of each rank, and the rank of each
        stage.

        Raises:
            ParameterError: the numbers do not fit each other, or there is no such family.
        """
        schedule = find_schedule(
            schedule_name,
            num_ranks=pipeline_parallel_size,
            num_stages=total_num_model_chunks,
            num_microbatches=count_microbatches(batch_size, microbatch_size),
            options={},
        )
        return _programs(schedule), dict(enumerate(schedule.placement.ranks))

    def split_inputs_outputs(self, x: Tree, y: Tree) -> tuple[list[Tree], list[Tree]]:
        """The microbatches of a batch and of its target.

        Raises:
            ParameterError: the batch cannot be cut, or has more rows than ``batch_size``.
        """
        batch = self._cut(x, y, {})
        parts = [args[0] if len(args) == 1 else args for args in batch.args]
        return parts, list(batch.targets or ())

    def start(
        self,
        x: Tree,
        y: Tree,
        *,
        return_outputs: bool = False,
        loss_kwargs: Mapping[str, Any] | None = None,
        loss_scale: float = 1.0,
        seed: int | None = None,
        **kwargs: Tree,
    ) -> Stepping:
        """Begin a step of which the script runs each action; see ``Stepping``. Nothing else runs
        until it is finished or abandoned. Arguments and errors are those of ``run``.

        Raises:
            ParameterError: a step is under way, or ``recover`` is given.
        """
        options = {"loss_kwargs": loss_kwargs, "loss_scale": loss_scale, "seed": seed}
        return self._begin(self._cut(x, y, kwargs), options, return_outputs=return_outputs)

    def run_action(
        self,
        action: Any,
        microbatch_x: Sequence[Tree] | None = None,
        microbatch_y: Sequence[Tree] | None = None,
    ) -> None:
        """Run one action of the step under way. The last one ends the step.

        Args:
            action: its text (``"0F0"``), an ``Action``, or an ``_Action`` of Monarch.
            microbatch_x, microbatch_y: what ``split_inputs_outputs`` gave. If no step is under way,
                one begins with them.

        Raises:
            ParameterError: the action cannot be next; says what has to run first.
            FormatError: it is no action's text.
            Exception: what the user's module raised.
        """
        stepping = self._under_way(microbatch_x, microbatch_y)
        stepping.run(action)
        if not stepping.left:
            stepping.finish()

    def dispatch_pp_schedule(
        self,
        pipeline_order: Schedule | Mapping[int, Sequence[Any]] | None = None,
        stage_to_rank: Callable[[int], int] | None = None,
        num_stages: int | None = None,
        microbatch_x: Sequence[Tree] | None = None,
        microbatch_y: Sequence[Tree] | None = None,
    ) -> dict[int, list[Action | None]]:
        """Run all actions, or those that are left of the step under way, as soon as each can run.

        Args:
            pipeline_order, stage_to_rank, num_stages: may be given again, as they are.
            microbatch_x, microbatch_y: as for ``run_action``.

        Returns:
            For each rank, what it did in each sweep over the ranks; None where it had to wait.

        Raises:
            ParameterError: the order is not that of ``schedule``; or there are no microbatches.
            Exception: what the user's module raised.
        """
        self._check_order(pipeline_order, stage_to_rank, num_stages)
        stepping = self._under_way(microbatch_x, microbatch_y)
        sweeps = []
        while stepping.left:
            sweeps.append(stepping.sweep())
        stepping.finish()
        return {rank: [sweep[rank] for sweep in sweeps] for rank in range(self.schedule.num_ranks)}

    def _cut(self, x: Tree, y: Tree, kwargs: dict[str, Tree]) -> Batch:
        return cut(
            x,
            y,
            kwargs,
            batch_size=self.batch_size,
            num_microbatches=self.num_microbatches,
            specs=self._specs,
        )

    def _requests(
        self, batch: Batch, options: Mapping[str, Any], *, return_outputs: bool
    ) -> list[tuple[Any, ...]]:
        """Each process's part. Raises ParameterError while a step is under way."""
        if self._stepping is not None and not self._stepping.is_over:
            raise ParameterError("a step is under way; finish() or abandon() it first")
        return [
            *share(
                batch,
                self.schedule.placement,
                self._processes,
                return_outputs=return_outputs,
                options=options,
            )
        ]

    def _keep(
        self, outputs: Sequence[StepOutput], requests: Sequence[tuple[Any, ...]]
    ) -> StepOutput:
        """What has come out of a run or an evaluation: it is ``last`` now."""
        last = self.schedule.placement.ranks[-1]
        at = next(i for i, ranks in enumerate(self._processes) if last in ranks)
        self.last = StepOutput(outputs[at].losses, outputs[at].outputs, requests[at][0].weights)
        return self.last

    def _keep_loss(self) -> Tensor:
        """Of the run that ``last`` is of."""
        assert self.last is not None
        assert self.last.losses is not None
        loss = self.loss = self.last.loss
        assert loss is not None
        if self.loss_list is not None:
            pairs = zip(self.last.weights, self.last.losses, strict=True)
            self.loss_list[:] = [weight * each for weight, each in pairs]
        return loss

    def _begin(
        self, batch: Batch, options: Mapping[str, Any], *, return_outputs: bool = False
    ) -> Stepping:
        if self._recovers:
            raise ParameterError(
                "a step that runs action by action cannot be recovered; leave recover out, or use "
                'run() with dispatch="step"'
            )
        self.initialize()
        requests = self._requests(batch, options, return_outputs=return_outputs)

        def finish(outputs: list[StepOutput]) -> Tensor:
            self._keep(outputs, requests)
            return self._keep_loss()

        self._stepping = Stepping(self._session, self.schedule, self._processes, requests, finish)
        return self._stepping

    def _under_way(self, xs: Sequence[Tree] | None, ys: Sequence[Tree] | None) -> Stepping:
        if self._stepping is not None and not self._stepping.is_over:
            return self._stepping
        if xs is None or ys is None:
            raise ParameterError(
                "no step is under way; begin one with start(x, y), or give the microbatches"
            )
        count = self.num_microbatches
        return self._begin(presplit_batch(xs, None, targets=ys, num_microbatches=count), {})

    def _check_order(
        self,
        order: Schedule | Mapping[int, Sequence[Any]] | None,
        stage_to_rank: Callable[[int], int] | None,
        num_stages: int | None,
    ) -> None:
        own = self.schedule
        if isinstance(order, Mapping):
            programs = [[a for a in order[rank] if a is not None] for rank in sorted(order)]
            same = own.programs == tuple(
                tuple(one for given in program for one in as_actions(given)) for program in programs
            )
        else:
            same = order is None or order == own
        stages = range(own.num_stages)
        if stage_to_rank is not None:
            same = same and own.placement.ranks == tuple(map(stage_to_rank, stages))
        if num_stages not in (None, own.num_stages) or not same:
            raise ParameterError(
                "this is another order than the processes were told; give it as schedule= when the "
                "pipeline is made"
            )


class RemoteOptimizer:
    """The optimizer of one stage, where that lives. One without parameters has none, and nothing
    happens.

    Args:
        model: of the stages.
        stage: its index.
    """

    def __init__(self, model: RemoteModel, stage: int) -> None:
        self._model, self._stage = model, stage

    def step(self) -> None:
        """Update the stage's parameters."""
        self._model.each_stage(_step_one, self._stage)

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Forget the gradients of the stage's parameters."""
        self._model.each_stage(_zero_grad_of_one, self._stage, set_to_none)


def _step_one(stage: HostedStage, index: int) -> None:
    if stage.index == index and stage.optimizer is not None:
        stage.optimizer.step()


def _zero_grad_of_one(stage: HostedStage, index: int, set_to_none: bool) -> None:  # noqa: FBT001
    if stage.index == index and stage.optimizer is not None:
        stage.optimizer.zero_grad(set_to_none)


def check_dispatch(dispatch: str) -> str:
    """How the script's messages are cut.

    Raises:
        ParameterError: in no way that there is.
    """
    if dispatch not in ("step", "action"):
        raise ParameterError(f"dispatch must be 'step' or 'action'; got {dispatch!r}")
    return dispatch


def _programs(schedule: Schedule) -> Programs:
    return {rank: list(program) for rank, program in enumerate(schedule.programs)}
