"""A pipeline: stages, a schedule and a transport, ready to train and evaluate."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn, TypeVar

import torch

from fullbore.errors import ExecutionError, ParameterError, TransportError
from fullbore.ir import Kind, Schedule
from fullbore.passes import ForwardOnly
from fullbore.passes.unshard import Lookahead
from fullbore.runtime.agreement import Agreement, compare_schedules
from fullbore.runtime.collective import Gathering, with_returns
from fullbore.runtime.custom import CustomFunction, LossFn, Run, check_trainable, register
from fullbore.runtime.evaluation import evaluating
from fullbore.runtime.failure import describe, report
from fullbore.runtime.flight import open_flight
from fullbore.runtime.intake import Given, Intake
from fullbore.runtime.microbatch import Spec, Specs
from fullbore.runtime.output import StepOutput
from fullbore.runtime.placing import check_tools, place
from fullbore.runtime.profiling import gather_profile
from fullbore.runtime.program import Program, edges
from fullbore.runtime.recorder import RecordingWorker
from fullbore.runtime.sharding import StageShardings, lower_for
from fullbore.runtime.stage import Stage
from fullbore.runtime.tied import TiedParameters
from fullbore.runtime.transport.base import Transport
from fullbore.runtime.transport.position import RUN
from fullbore.runtime.tree import Tree
from fullbore.runtime.walk import Walk, WatchedWorker
from fullbore.runtime.worker import StageWorker
from fullbore.sim import Profile

W = TypeVar("W", bound=StageWorker)


class Pipeline:
    """Runs a schedule on real stages.

    Args:
        stages: the stages of the ranks that ``transport`` plays: all of them for a
            ``LocalTransport``, this rank's otherwise.
        schedule: in either form; a COMPUTE schedule is lowered here, a LOWERED one taken as it is.
        loss_fn: ``loss_fn(output, target, **loss_kwargs)`` gives the mean loss of one microbatch, a
            scalar tensor. Only the rank of the last stage calls it.
        transport: carries what crosses ranks. It is used by this pipeline alone.
        args_spec, kwargs_spec, target_spec: how to cut a batch (see ``fullbore.runtime.microbatch``
            for the rule without a spec).
        scale_grads: weigh each microbatch's loss by its share of the rows (1/M for microbatches cut
            by the caller) before backward; False weighs each with 1.
        max_active_stages, lookahead: how many stages are kept gathered, and how early gathering
            starts, where a COMPUTE schedule meets stages of ``fully_shard``; see ``InsertUnshard``.
        tied: groups of parameters of different stages that are one, by ``"STAGE.NAME"``, such as
            ``[("0.embedding.weight", "3.head.weight")]``; the same on all ranks.
        backward_requires_autograd: False allows ``step`` where gradients are switched off, for
            custom functions that compute all forwards and backwards without autograd.
        flight_record: a folder. When a step fails, each rank's last actions are written there.
        profile: note when each action of ``step`` runs; see ``profile()``.

    Attributes:
        failures: how many calls have failed here; a rank that has not heard of one has fewer.

    Raises:
        InvalidSchedule: the schedule is not valid.
        ParameterError: the stages are not those that the schedule places here, or another rank has
            another schedule.
        ExecutionError: another rank failed to make its pipeline.
    """

    failures = 0
    _epoch = 0
    _running = False
    _broken: str | None = None

    def __init__(
        self,
        stages: Stage | Sequence[Stage],
        schedule: Schedule,
        *,
        transport: Transport,
        loss_fn: LossFn | None = None,
        args_spec: Spec = None,
        kwargs_spec: Mapping[str, Spec] | None = None,
        target_spec: Spec = None,
        scale_grads: bool = True,
        max_active_stages: int = 3,
        lookahead: Lookahead = None,
        tied: Sequence[Sequence[str]] = (),
        backward_requires_autograd: bool = True,
        flight_record: str | os.PathLike[str] | None = None,
        profile: bool = False,
    ) -> None:
        check_tools(transport, loss_fn)
        given = [stages] if isinstance(stages, Stage) else list(stages)
        lowered = lower_for(
            given, schedule, max_active_stages=max_active_stages, lookahead=lookahead
        )
        self.schedule, self._loss_fn, self._transport = lowered, loss_fn, transport
        self.tied = TiedParameters(tied, lowered.placement)
        channels = with_returns(edges(lowered))
        transport.connect(lowered.num_ranks, with_returns({*channels, *self.tied.edges}))
        self._progress, self._gathering = transport.progress, Gathering(channels, transport)
        self._agreement = Agreement(channels, transport)
        self._flight = None if flight_record is None else open_flight(flight_record, transport)
        self._programs: dict[bool, Program] = {}
        self._custom: dict[Kind, CustomFunction] = {}
        self._requires_autograd, self._profiles = backward_requires_autograd, profile
        try:
            self._stages = place(given, lowered, transport.ranks)
            self._intake = Intake(
                lowered.num_microbatches,
                Specs(args_spec, kwargs_spec, target_spec),
                scale_grads=scale_grads,
                has_first=self.has_first,
                is_alone=len(transport.ranks) == lowered.num_ranks,
            )
            self._shardings = StageShardings(self._stages, transport.watch)
            self.tied.bind(self._stages)
            if len(transport.ranks) < lowered.num_ranks:
                compare_schedules(lowered, channels, transport=transport, tied=str(self.tied))
        except BaseException as error:
            self._report(error)
            transport.abort(describe(error))
            raise

    @property
    def stages(self) -> Mapping[int, Stage]:
        """The stages of this process, by index."""
        return self._stages

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks that this process plays."""
        return tuple(self._transport.ranks)

    @property
    def has_first(self) -> bool:
        """Whether this process holds the first stage, which takes the positional arguments."""
        return 0 in self._stages

    @property
    def has_last(self) -> bool:
        """Whether this process holds the last stage, which gives losses and outputs."""
        return self.schedule.num_stages - 1 in self._stages

    def step(
        self,
        *args: Tree,
        target: Tree = None,
        return_outputs: bool = False,
        share_loss: bool = False,
        loss_weights: Sequence[float] | None = None,
        loss_scale: float = 1.0,
        loss_kwargs: Mapping[str, Any] | None = None,
        seed: int | None = None,
        arg_mbs: Sequence[Tree] | None = None,
        kwarg_mbs: Sequence[Mapping[str, Tree]] | None = None,
        target_mbs: Sequence[Tree] | None = None,
        **kwargs: Tree,
    ) -> StepOutput:
        """Forward and backward over one batch; gradients are added to ``.grad``.

        Every rank calls it. Only the first stage's rank uses the positional arguments and only the
        last stage's the target, but ranks may be given both.

        Args:
            args: positional arguments of the first stage, a whole batch.
            target: the target of the whole batch.
            return_outputs: also give the last stage's outputs.
            share_loss: give the losses to every rank; the same on all ranks.
            loss_weights: what each microbatch's loss counts for, instead of its share of the rows.
            loss_scale: multiplies all gradients, and no loss that is given back; see GradScaler.
            loss_kwargs: further keyword arguments of the loss function.
            seed: of what ``seeded`` modules draw, the same on all ranks.
            arg_mbs, kwarg_mbs, target_mbs: microbatches cut by the caller, instead of a batch;
                their sizes may differ.
            kwargs: keyword arguments of every stage.

        Raises:
            ParameterError: bad arguments, or gradients are switched off.
            ExecutionError: another rank failed, or a message went wrong. An exception of the user's
                own module keeps its type and gains a note.
        """
        mbs = (arg_mbs, kwarg_mbs, target_mbs)
        given = Given(
            args, kwargs, target, mbs, loss_weights, loss_scale, loss_kwargs, return_outputs, seed
        )
        with self._training(given) as run:
            return self._execute(run, share_loss=share_loss)

    def walk(self, given: Given) -> Walk:
        """A step whose actions the caller runs one by one. All ranks begin it, and nothing else can
        be asked of the pipeline before they finish or abandon it. Errors are those of ``step``."""
        with ExitStack() as stack:
            run = stack.enter_context(self._training(given))
            worker = self._make_worker(WatchedWorker, self.schedule)
            program = Program(self.schedule, self._transport, worker)
            stack.enter_context(self._steered(training=True))
            stack.enter_context(program.running(run))
            return Walk(program, worker, run, ends=stack.pop_all(), flight=self._flight)

    def eval(
        self,
        *args: Tree,
        target: Tree = None,
        return_outputs: bool = True,
        share_loss: bool = False,
        keep_mode: bool = False,
        loss_kwargs: Mapping[str, Any] | None = None,
        arg_mbs: Sequence[Tree] | None = None,
        kwarg_mbs: Sequence[Mapping[str, Tree]] | None = None,
        target_mbs: Sequence[Tree] | None = None,
        **kwargs: Tree,
    ) -> StepOutput:
        """Forward only, without gradients, with modules in evaluation mode; flags are restored.

        Losses are given where there is a loss function and a target. Arguments and errors are those
        of ``step``; ``keep_mode`` leaves the modules' mode as it is.
        """
        modules = [] if keep_mode else [stage.module for stage in self._stages.values()]
        with self._attempt(training=False) as epoch, evaluating(modules), torch.no_grad():
            batch = self._intake.cut(args, kwargs, target, (arg_mbs, kwarg_mbs, target_mbs))
            loss_fn = self._loss_fn if self.has_last and batch.targets is not None else None
            shares = self._intake.weigh(batch, None, is_used=loss_fn is not None)
            run = Run(batch, epoch, loss_kwargs or {}, return_outputs, loss_fn, shares)
            return self._execute(run, share_loss=share_loss)

    def register_custom_function(self, kind: Kind | str, function: CustomFunction) -> None:
        """Let ``function(action, context)`` compute all actions of one kind, in training and in
        evaluation, also inside overlaps; see ``ActionContext`` for what it works with.

        Args:
            kind: F, B, I, W, OVERLAP_F_B, UNSHARD, RESHARD or REDUCE_GRAD, as a ``Kind`` or its
                name. A function for OVERLAP_F_B takes precedence over those for its parts, which
                it reaches by running them.
            function: called on the thread of ``step()``, in the place that the schedule gives the
                action. A function that was registered for the kind before is replaced, with a
                warning.

        Raises:
            ParameterError: the kind is none of these, or a step is under way.
        """
        if self._running:
            raise ParameterError("custom functions cannot be registered while a step runs")
        register(self._custom, kind, function)

    def all_gather(self, value: Tree) -> list[Tree]:
        """What each process of the pipeline gives, in the order of their ranks, on all of them.

        Every rank calls it, between steps. Meant for small values, such as a norm: they travel from
        rank to rank along the pipeline's links. In a process that plays all ranks, the list holds
        its value alone.

        Args:
            value: any pytree of tensors without graph and plain values.

        Raises:
            ParameterError: a step is under way.
            ExecutionError: another rank failed, or does something else.
        """
        with self._attempt(training=False) as epoch, torch.no_grad():
            return self._gathering.run(value, epoch)

    def profile(self) -> Profile:
        """When each action of the latest steps ran on every rank, at most 50 of them.

        Every rank calls it, between steps. The times are seconds on one clock: those of ranks on
        other hosts are set right by messages to and fro. On GPUs they are those of the stream.

        Raises:
            ParameterError: the pipeline was not made with ``profile=True``, no step has run since,
                or a step is under way.
            ExecutionError: another rank failed, or does something else.
        """
        if not self._profiles:
            raise ParameterError("the pipeline keeps no profile; make it with profile=True")
        with self._attempt(training=False) as epoch, torch.no_grad():
            worker = self._programs[True].worker if True in self._programs else None
            steps = worker.steps if isinstance(worker, RecordingWorker) else ()
            return gather_profile(self.schedule, steps, self._gathering, epoch)

    def realign(self) -> None:
        """Say that the next call of this rank and that of all others belong together, whatever
        they have called before.

        A rank that had finished its part of the step in which another one failed learns of it one
        call later. Since then the ranks are out of step, which every call refuses until all of
        them have called this.
        """
        self._agreement.calls = 0
        self._agreement.forget()

    def abandon(self, error: BaseException) -> NoReturn:
        """Raise ``error`` as the outcome of a step or evaluation that all ranks begin: the others
        are told, and don't wait for this one."""
        with self._attempt(training=True):
            raise error

    def close(self) -> None:
        """Release the transport."""
        self._broken = "it was closed"
        self._transport.close()

    @contextmanager
    def _attempt(self, *, training: bool) -> Iterator[int]:
        """One call of ``step`` or ``eval``: gives its number. A failure, be it of an argument, is
        told to the other ranks, which wait for this one's messages."""
        broken = self._broken or self._shardings.broken
        if broken is not None:
            refusal = ExecutionError(f"this pipeline cannot be used any more: {broken}")
            self._transport.abort(describe(refusal))  # a rank that can go on waits for this one
            raise refusal
        if self._running:
            raise ParameterError("step() and eval() cannot be called while one of them runs")
        if self._transport.progress is not self._progress:
            raise ParameterError(
                "this pipeline's transport was given to another pipeline since; make a transport "
                "for each pipeline that you use"
            )
        self._running = True
        self._epoch += 1
        self._agreement.calls += 1
        try:
            # In a message's tag, so that a rank that evaluates is not taken for one that trains.
            self._progress[RUN] = run = 2 * self._epoch + training
            yield run
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._running = False

    @contextmanager
    def _training(self, given: Given) -> Iterator[Run]:
        """All of a step but its actions."""
        with self._attempt(training=True) as epoch:
            check_trainable(
                self.schedule, self.ranks, self._custom, requires_autograd=self._requires_autograd
            )
            if self._loss_fn is None:
                raise ParameterError("step() needs the loss_fn that Pipeline was not given")
            run = self._intake.take(given, epoch, self._loss_fn, has_last=self.has_last)
            with self.tied.summed(epoch, self._transport):
                yield run

    @contextmanager
    def _steered(self, *, training: bool) -> Iterator[None]:
        self._agreement.reach(training=training)
        with self._shardings.steered(training=training, tied=bool(str(self.tied))):
            yield

    def _execute(self, run: Run, *, share_loss: bool) -> StepOutput:
        training = run.weights is not None
        if training not in self._programs:
            schedule = self.schedule if training else ForwardOnly()(self.schedule)
            kind = RecordingWorker if training and self._profiles else StageWorker
            worker = self._make_worker(kind, schedule)
            self._programs[training] = Program(schedule, self._transport, worker)
        with self._steered(training=training):
            self._programs[training].execute(run, self._flight)
        out = run.output()
        return self._gathering.share_loss(out, run.epoch) if share_loss else out

    def _make_worker(self, kind: type[W], schedule: Schedule) -> W:
        return kind(
            schedule,
            self._stages,
            transport=self._transport,
            shardings=self._shardings,
            custom=self._custom,
            owner=self,
        )

    def _fail(self, error: BaseException) -> None:
        """Tell the other ranks, and find out whether the channels can be used again."""
        self.failures += 1
        try:
            self._report(error)
        finally:
            self._transport.abort(describe(error))
            self._agreement.forget()
        try:
            self._transport.reset()
        except TransportError as reason:
            self._broken = str(reason)
            return
        # A rank that failed and one that had already finished the step count on from here alike.
        self._epoch = self._progress[RUN] = 0

    def _report(self, error: BaseException) -> None:
        report(error, schedule=self.schedule, transport=self._transport, flight=self._flight)
