"""What lives beside the ranks of one process, and does what the controller asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from fullbore.controller.helpers import pass_by_name
from fullbore.controller.snapshot import Snapshot, restore, take
from fullbore.controller.stages import StageSource
from fullbore.controller.stepping import WalkingHost
from fullbore.controller.streams import SideStream
from fullbore.controller.watch import Watch
from fullbore.errors import ParameterError, PeerFailed
from fullbore.ir import Schedule
from fullbore.runtime import (
    Pipeline,
    Stage,
    StepOutput,
    Transport,
    clip_grad_norm_,
    load_checkpoint,
    save_checkpoint,
)
from fullbore.runtime.checkpoint_state import Rename, load_model, model_state
from fullbore.runtime.custom import LossFn
from fullbore.runtime.intake import Presplit
from fullbore.runtime.names import bare_module, plain_name
from fullbore.runtime.tree import Tree, tensors
from fullbore.sim import Profile

MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]


_OPTIONS = (
    *("tied", "scale_grads", "profile", "flight_record"),
    *("max_active_stages", "lookahead", "backward_requires_autograd"),
)


def check_options(options: Mapping[str, Any]) -> None:
    """Guard of ``Build.options``.

    Raises:
        TypeError: ``Pipeline`` takes no such argument.
    """
    strange = next((name for name in options if name not in _OPTIONS), None)
    if strange is not None:
        raise TypeError(
            f"PipelineParallelism takes no argument {strange!r}; for the runtime's Pipeline it "
            f"takes {', '.join(_OPTIONS)}"
        )


@dataclass(frozen=True, slots=True)
class Build:
    """What a process is told to be.

    Attributes:
        ranks: that it plays.
        schedule: in the LOWERED form.
        stages: of its ranks, by index.
        loss_fn: only the last stage's process calls it.
        names: from a stage's index and a name in it to the name in the unsplit model; None if the
            stages have the names already.
        device: where the stages are; None leaves them.
        compute_stream: what ``check_stream`` gave.
        options: further arguments of ``Pipeline``.
    """

    ranks: tuple[int, ...]
    schedule: Schedule
    stages: Mapping[int, StageSource]
    loss_fn: LossFn | None
    names: Rename | None = None
    device: str | None = None
    compute_stream: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One process's part of a batch, cut into microbatches; None is what it does not need.

    Attributes:
        args, kwargs, targets: by microbatch.
        weights: what each microbatch's loss counts for.
        return_outputs: also give the last stage's outputs.
        options: further arguments of ``Pipeline.step`` or ``eval``.
    """

    args: Sequence[Tree] | None
    kwargs: Sequence[Mapping[str, Tree]] | None
    targets: Sequence[Tree] | None
    weights: tuple[float, ...]
    return_outputs: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def check_sendable(self) -> None:
        """Guard of sending it to another process.

        Raises:
            ParameterError: it asks for a gradient, which would not come back.
        """
        for tensor in tensors((self.args, self.kwargs, self.targets)):
            if tensor.requires_grad:
                raise ParameterError(
                    "a tensor of the batch asks for a gradient, which does not come back from the "
                    "process of the first stage; detach() it, or use engine='local'"
                )

    def parts(self, device: str | None) -> Presplit:
        """``args``, ``kwargs`` and ``targets`` on a device; None leaves them where they are."""
        parts = (self.args, self.kwargs, self.targets)
        if device is None:
            return parts
        moved: Presplit = pytree.tree_map_only(Tensor, lambda t: t.to(device), parts)
        return moved


@dataclass(frozen=True, slots=True)
class HostedStage:
    """A stage where it lives."""

    index: int
    module: nn.Module
    optimizer: Optimizer | None


class RankHost(WalkingHost):
    """The stages of a process's ranks, and what trains them.

    Every process's host gets the same calls in the same order, each with its own arguments.

    Args:
        transport: of this process; it is used by this host alone.
        build: what it is told to be.

    Attributes:
        pipeline: that runs the stages.
        optimizers: by stage.
        device: where batches go; None leaves them where they are.
    """

    def __init__(self, transport: Transport, build: Build) -> None:
        self._names: Rename = build.names or _as_it_is
        self.device = build.device
        num_stages = build.schedule.num_stages
        modules = {
            index: source if isinstance(source, nn.Module) else source.build()
            for index, source in build.stages.items()
        }
        self.pipeline = Pipeline(
            [Stage(module, i, num_stages, device=build.device) for i, module in modules.items()],
            build.schedule,
            transport=transport,
            loss_fn=build.loss_fn,
            **build.options,
        )
        self._handles = [pass_by_name(module) for module in modules.values()]
        self._side = SideStream(build.compute_stream, modules.values())
        self.optimizers: dict[int, Optimizer] = {}
        self._watch = Watch(self.pipeline)

    def train(self, request: Request) -> StepOutput:
        """Forward and backward over a batch."""
        self._watch.begin()
        args, kwargs, targets = self._received(request)
        with self._side.active():
            return self.pipeline.step(
                arg_mbs=args,
                kwarg_mbs=kwargs,
                target_mbs=targets,
                loss_weights=request.weights,
                return_outputs=request.return_outputs,
                **request.options,
            )

    def evaluate(self, request: Request) -> StepOutput:
        """Forward only."""
        self._watch.begin()
        args, kwargs, targets = self._received(request)
        with self._side.active():
            return self.pipeline.eval(
                arg_mbs=args,
                kwarg_mbs=kwargs,
                target_mbs=targets,
                return_outputs=request.return_outputs,
                **request.options,
            )

    def configure_optimizers(self, makers: Mapping[int, MakeOptimizer]) -> None:
        """Make an optimizer for each stage that has parameters; a parameter that several stages of
        this process share is the first one's."""
        taken: set[nn.Parameter] = set()
        self.optimizers = {}
        for index, stage in self.pipeline.stages.items():
            own = [p for p in stage.module.parameters() if p.requires_grad and p not in taken]
            taken.update(own)
            if own:
                self.optimizers[index] = _checked(makers[index](own), index)

    def zero_grad(self, set_to_none: bool) -> None:  # noqa: FBT001 - requests are positional
        """Of all parameters, also of those that no optimizer has."""
        for stage in self.pipeline.stages.values():
            stage.module.zero_grad(set_to_none)

    def optimizer_step(self) -> None:
        """One step of each stage's optimizer."""
        for optimizer in self.optimizers.values():
            optimizer.step()

    def clip_grad_norm(self, max_norm: float, norm_type: float) -> Tensor:
        """As ``clip_grad_norm_`` over the whole pipeline; the norm before."""
        own = [p for stage in self.pipeline.stages.values() for p in stage.module.parameters()]
        return clip_grad_norm_(own, max_norm, norm_type, pipeline=self.pipeline).cpu()

    def state_dict(self) -> dict[str, Any]:
        """A copy of parameters and buffers, by the unsplit model's names."""
        state = model_state(self.pipeline.stages, self._names, compares=True)
        return {name: _copy(value) for name, value in state.items()}

    def state_names(self) -> dict[str, tuple[int, ...]]:
        """What ``state_dict`` holds, and its shapes."""
        state = model_state(self.pipeline.stages, self._names, compares=False)
        return {name: tuple(getattr(value, "shape", ())) for name, value in state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Parameters and buffers; ``state`` has at least those of the stages here."""
        load_model(self.pipeline.stages, dict(state), self._names)

    def parameter(self, name: str) -> Tensor | None:
        """A copy of a parameter, by the unsplit model's name; None if it is not here."""
        found = self._parameters().get(name)
        return None if found is None else _copy(found)

    def gradients(self, names: Sequence[str] | None) -> dict[str, Tensor | None]:
        """Copies of the gradients of the parameters here, or of some, by name."""
        return {
            name: _copy(p.grad)
            for name, p in self._parameters().items()
            if names is None or name in names
        }

    def watch(self, stages: Sequence[int]) -> None:
        """Keep what these stages give, from the next run on."""
        self._watch.choose(stages)

    def activations(self, stage: int) -> tuple[list[Tree], list[Tree]] | None:
        """What a watched stage gave in the last run, and its gradients, by microbatch."""
        return self._watch.found(stage)

    def each_stage(self, function: Callable[..., Any], args: tuple[Any, ...]) -> dict[int, Any]:
        """What ``function(stage, *args)`` gives for each ``HostedStage`` here."""
        return {
            index: function(HostedStage(index, stage.module, self.optimizers.get(index)), *args)
            for index, stage in self.pipeline.stages.items()
        }

    def profile(self) -> Profile | None:
        """The profile of all ranks, from rank 0's process."""
        profile = self.pipeline.profile()
        return profile if 0 in self.pipeline.ranks else None

    def save_checkpoint(self, path: str, extra: object) -> None:
        """As the runtime's."""
        save_checkpoint(
            self.pipeline,
            path,
            optimizers=self.optimizers.values(),
            extra=extra,
            rename=self._names,
        )

    def load_checkpoint(self, path: str) -> Any:
        """As the runtime's."""
        return load_checkpoint(
            self.pipeline, path, optimizers=self.optimizers.values(), rename=self._names
        )

    def snapshot(self) -> Snapshot:
        """All that training changes here."""
        return take(self.pipeline.stages, self.optimizers)

    def restore(self, snapshot: Snapshot) -> None:
        """What ``snapshot`` gave. The optimizers are those that there were."""
        restore(snapshot, self.pipeline.stages, self.optimizers)

    def failures(self) -> int:
        """How many calls of the pipeline have failed here."""
        return self.pipeline.failures

    def catch_up(self, failures: int) -> None:
        """After a failure: join the other ranks, whose next calls belong together.

        Args:
            failures: how many calls have failed where most have.
        """
        self.abandon_walk()
        while self.pipeline.failures < failures:
            with suppress(PeerFailed):
                self.pipeline.abandon(PeerFailed("another rank failed in this step"))
        self.pipeline.realign()

    def close(self) -> None:
        """Release the transport."""
        self._watch.choose(())
        for handle in self._handles:
            if handle is not None:
                handle.remove()
        self.pipeline.close()

    def _parameters(self) -> dict[str, nn.Parameter]:
        return {
            self._names(index, plain_name(name)): parameter
            for index, stage in self.pipeline.stages.items()
            for name, parameter in bare_module(stage).named_parameters(remove_duplicate=False)
        }


def _checked(optimizer: object, stage: int) -> Optimizer:
    if not isinstance(optimizer, Optimizer):
        raise ParameterError(
            f"the optimizer of stage {stage} is a {type(optimizer).__qualname__}; give a function "
            "that takes a list of parameters and gives a torch.optim.Optimizer"
        )
    return optimizer


def _copy(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


def _as_it_is(_: int, name: str) -> str:
    return name
