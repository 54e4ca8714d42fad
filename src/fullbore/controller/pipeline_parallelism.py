"""The single controller: one object that owns all ranks of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal

from torch import Tensor

from fullbore.controller.dispatch import Dispatching, RemoteOptimizer, check_dispatch
from fullbore.controller.engine import Engine
from fullbore.controller.engines import find_engine
from fullbore.controller.helpers import MeanLoss
from fullbore.controller.host import Build, MakeOptimizer, check_options
from fullbore.controller.opaque import unwrap
from fullbore.controller.recovery import make_recovery
from fullbore.controller.session import Session
from fullbore.controller.source import ScheduleSource, count_microbatches, find_schedule
from fullbore.controller.stages import check_stages, tie_shared
from fullbore.controller.streams import check_stream
from fullbore.errors import ParameterError
from fullbore.runtime import StepOutput
from fullbore.runtime.checkpoint_state import Rename
from fullbore.runtime.custom import LossFn
from fullbore.runtime.microbatch import Batch, Spec, Specs
from fullbore.runtime.tree import Tree


class PipelineParallelism(Dispatching):
    """Trains a pipeline from one script, whatever processes its ranks are in.

    Args:
        meshes: where the ranks are: their number, or what the engine takes (Monarch: a proc mesh
            with a process a rank, a host mesh with a host a rank, or a list of meshes).
        stages: of the model, in order: modules, or ``Factory`` to build one where it lives. There
            may be several a rank, which ``schedule`` places.
        compute_stream, p2p_stream: see ``fullbore.controller.streams``.
        schedule: the name of a family, a ``Schedule``, a ``Plan``, or a file.
        batch_size: rows of a batch.
        microbatch_size: rows of a microbatch, which divides ``batch_size``.
        loss_fn: ``loss_fn(output, target)`` gives the mean loss of a microbatch, or numbers that
            are averaged.
        loss_list: gets what each microbatch adds to the loss of the last run, where it is a list.
        engine: ``"local"`` plays all ranks in this process, ``"monarch"`` each in an actor; None is
            the latter where ``meshes`` are Monarch's.
        dispatch: ``"step"`` sends a message a rank a step, ``"action"`` one an action; see
            ``start`` for what that is good for.
        recover: go on when a rank is lost: start all anew from the last state held and run again
            what came since. A number is how many steps lie between two states; True is 1.
        schedule_options: of the family (``round_size=2``), or for the file (``dialect="monarch"``).
        optimizers: as for ``configure_optimizers``.
        names: from a stage's index and a name in its module to the name in the unsplit model. None
            if the modules have these names already, as slices of one ``nn.Sequential`` have.
        device: where each rank's stages go, such as ``"cuda"``; None leaves them.
        args_spec, kwargs_spec, target_spec: how to cut a batch where the runtime's rule does not.
        options: further arguments of ``runtime.Pipeline``: ``tied``, ``profile``,
            ``flight_record``, ``scale_grads``.

    Attributes:
        schedule: what runs, lowered.
        last: what the last ``run`` or ``eval`` gave: losses by microbatch, and outputs.

    Raises:
        ParameterError: the arguments do not fit each other.
        MissingExtra: the engine needs a package that is not installed.
    """

    def __init__(
        self,
        meshes: Any,
        stages: Sequence[Any],
        compute_stream: object = None,
        p2p_stream: object = None,
        schedule: ScheduleSource = "dora-dfs",
        batch_size: int = 4,
        microbatch_size: int = 1,
        loss_fn: LossFn | None = None,
        loss_list: list[Tensor] | None = None,
        *,
        engine: str | Engine | None = None,
        dispatch: Literal["step", "action"] = "step",
        recover: bool | int = False,
        schedule_options: Mapping[str, Any] | None = None,
        optimizers: MakeOptimizer | Sequence[MakeOptimizer] | None = None,
        names: Rename | None = None,
        device: str | None = None,
        args_spec: Spec = None,
        kwargs_spec: Mapping[str, Spec] | None = None,
        target_spec: Spec = None,
        **options: Any,
    ) -> None:
        self.meshes, self.stages = meshes, check_stages(stages)
        self.compute_stream = check_stream(compute_stream, "compute_stream")
        self.p2p_stream = check_stream(p2p_stream, "p2p_stream")
        self.dispatch = check_dispatch(dispatch)
        check_options(options)
        self.batch_size, self.microbatch_size = batch_size, microbatch_size
        self.num_microbatches = count_microbatches(batch_size, microbatch_size)
        self.loss_fn, self.loss_list = unwrap(loss_fn), unwrap(loss_list)
        self._recovers = recover is not False
        self._specs = Specs(args_spec, kwargs_spec, target_spec)
        found = find_engine(engine, meshes)
        self._processes = found.place(meshes)
        self.schedule = find_schedule(
            schedule,
            num_ranks=sum(map(len, self._processes)),
            num_stages=len(self.stages),
            num_microbatches=self.num_microbatches,
            options=schedule_options or {},
        )
        options["tied"] = tie_shared(self.stages, self._process_of, options.get("tied", ()))
        builds = [self._build(ranks, names, device, options) for ranks in self._processes]
        session = Session(found, builds, make_recovery(recover, found))
        super().__init__(session, len(self.stages))
        self._optimizers = optimizers

    def initialize(self) -> None:
        """Start the processes; build the stages and their optimizers; see ``RemoteModel``."""
        super().initialize()
        if self._optimizers is not None:
            makers, self._optimizers = self._optimizers, None
            self._configure(makers)

    def run(
        self,
        x: Tree,
        y: Tree,
        *,
        return_outputs: bool = False,
        loss_kwargs: Mapping[str, Any] | None = None,
        loss_scale: float = 1.0,
        seed: int | None = None,
        **kwargs: Tree,
    ) -> Tensor:
        """Forward and backward over a batch; gradients are added to ``.grad`` on the ranks.

        Args:
            x: the first stage's argument, ``batch_size`` rows or fewer; a tuple is several.
            y: the target.
            return_outputs: ``last`` also holds the last stage's outputs.
            loss_kwargs: further keyword arguments of ``loss_fn``.
            loss_scale: multiplies all gradients.
            seed: of what ``seeded`` modules draw.
            kwargs: keyword arguments of every stage.

        Returns:
            The mean loss of the batch, a scalar tensor.

        Raises:
            ParameterError: the batch cannot be cut, or has more rows than ``batch_size``.
            RankLost: a rank's process is gone or stopped.
            Exception: what a stage or the loss function raised, with a note that says where.
        """
        options = {"loss_kwargs": loss_kwargs, "loss_scale": loss_scale, "seed": seed}
        batch = self._cut(x, y, kwargs)
        if self.dispatch == "action":
            return self._begin(batch, options, return_outputs=return_outputs).finish()
        self.initialize()
        self._session.hold()
        self._run("train", batch, options, return_outputs=return_outputs)
        return self._keep_loss()

    def eval(
        self,
        x: Tree,
        y: Tree = None,
        *,
        return_outputs: bool = True,
        keep_mode: bool = False,
        loss_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Tree,
    ) -> StepOutput:
        """Forward only, without gradients, with the stages in evaluation mode; ``keep_mode`` leaves
        their mode. Gives losses where there is a target, and outputs; arguments and errors are
        those of ``run``."""
        options = {"loss_kwargs": loss_kwargs, "keep_mode": keep_mode}
        self.initialize()
        batch = self._cut(x, y, kwargs)
        return self._run("evaluate", batch, options, return_outputs=return_outputs)

    def set_optimizers(self, optimizers: MakeOptimizer | Sequence[MakeOptimizer]) -> None:
        """Make an optimizer for each stage, in its process.

        Args:
            optimizers: takes a list of parameters and gives an optimizer, such as
                ``functools.partial(torch.optim.AdamW, lr=1e-3)``; or one a stage.
        """
        self.initialize()
        self._configure(optimizers)

    def configure_optimizers(
        self, config: Any, config_fn: Callable[..., Any]
    ) -> list[RemoteOptimizer]:
        """``set_optimizers`` with ``config_fn(weight_decay, learning_rate, (beta1, beta2),
        device_type, optimizer, parameters)``, whose arguments are attributes of ``config``. Gives
        each stage's optimizer; ``step()`` and ``zero_grad()`` of this object are those of all."""
        self.set_optimizers(
            partial(
                config_fn,
                config.weight_decay,
                config.learning_rate,
                (config.beta1, config.beta2),
                config.device_type,
                config.optimizer,
            )
        )
        return [RemoteOptimizer(self, stage) for stage in range(self.schedule.num_stages)]

    def close(self) -> None:
        """End the processes; nothing of the pipeline is left but what was fetched."""
        self._session.close()

    def __enter__(self) -> PipelineParallelism:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _process_of(self) -> list[int]:
        """By stage."""
        return [
            next(process for process, ranks in enumerate(self._processes) if rank in ranks)
            for rank in self.schedule.placement.ranks
        ]

    def _build(
        self,
        ranks: Sequence[int],
        names: Rename | None,
        device: str | None,
        options: Mapping[str, Any],
    ) -> Build:
        placement = self.schedule.placement.ranks
        own = {i: stage for i, stage in enumerate(self.stages) if placement[i] in ranks}
        loss_fn = None if self.loss_fn is None else MeanLoss(self.loss_fn)
        return Build(
            tuple(ranks),
            self.schedule,
            own,
            loss_fn,
            names,
            device,
            self.compute_stream,
            options,
        )

    def _run(
        self,
        method: str,
        batch: Batch,
        options: Mapping[str, Any],
        *,
        return_outputs: bool,
    ) -> StepOutput:
        requests = self._requests(batch, options, return_outputs=return_outputs)
        # An evaluation changes something, too: it may draw random numbers, and is what is watched.
        return self._keep(self._session.change_each(method, requests), requests)

    def _configure(self, makers: MakeOptimizer | Sequence[MakeOptimizer]) -> None:
        count = len(self.stages)
        each = [makers] * count if callable(makers) else list(makers)
        if len(each) != count:
            raise ParameterError(f"{len(each)} optimizers for {count} stages; give one for each")
        self._session.change("configure_optimizers", dict(enumerate(each)))
