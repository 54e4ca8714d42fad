"""Functions of the user's that compute in place of the built-in ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fullbore.errors import ParameterError
from fullbore.ir import KINDS, Action, Kind, Schedule
from fullbore.runtime.microbatch import Batch
from fullbore.runtime.output import StepOutput
from fullbore.runtime.stage import Stage
from fullbore.runtime.tree import Tree
from fullbore.runtime.unit import MISSING, Gradients, Record, Unit

_PASSES = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.OVERLAP_F_B)

CUSTOMIZABLE = (
    *_PASSES,
    *(Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE_GRAD),
)
"""The kinds that a custom function may compute. Messages are the executor's."""

LossFn = Callable[..., Tensor]


@dataclass(slots=True)
class Run:
    """One pass over the schedule: what goes in, and what has come out so far.

    Attributes:
        batch: the microbatches.
        epoch: the number of the run, the same on all ranks.
        loss_kwargs: keyword arguments of the loss function.
        keep_outputs: whether the last stage's outputs are kept.
        loss_fn: called as ``loss_fn(output, target, **loss_kwargs)`` after the last stage's
            forward; None if no loss is wanted.
        shares: what each microbatch's loss counts for.
        weights: what multiplies each microbatch's gradients; None in evaluation.
        seed: of what seeded modules draw; None if none was given.
        losses, outputs: by microbatch, on the rank of the last stage.
        has_graph: whether any of these losses requires grad.
    """

    batch: Batch
    epoch: int
    loss_kwargs: Mapping[str, Any]
    keep_outputs: bool
    loss_fn: LossFn | None
    shares: tuple[float, ...]
    weights: Sequence[float] | None = None
    seed: int | None = None
    losses: dict[int, Tensor] = field(default_factory=dict)
    outputs: dict[int, Tree] = field(default_factory=dict)
    has_graph: bool = False

    def output(self) -> StepOutput:
        """What has come out, in the order of the microbatches."""
        count = range(len(self.shares))
        losses = tuple(self.losses[m] for m in count) if self.losses else None
        outputs = tuple(self.outputs[m] for m in count) if self.outputs else None
        return StepOutput(losses, outputs, self.shares)


class ActionContext:
    """What a custom function works with, for one action.

    The function only computes. Its inputs have been received; what it delivers is sent, handed to
    a neighbour on the same rank and counted, and the loss is computed, by the executor.

    ``run()`` does what would be done without the function, so that it can be wrapped. Without it,
    the function of an

    * ``F`` calls ``deliver_output`` with what the module gives for ``args`` and ``kwargs``;
    * ``B`` or ``I`` runs backward from ``outputs`` with ``output_gradients``, which adds to the
      ``.grad`` of ``inputs``, or calls ``deliver_gradients`` with one gradient for each of them;
    * ``W`` does what the function of ``I`` has left to do, for which ``state`` is there;
    * ``OVERLAP_F_B`` does that for each of ``parts``;
    * ``UNSHARD``, ``RESHARD`` or ``REDUCE_GRAD`` has no microbatch, and delivers nothing.

    Attributes:
        action: what is to be done.
        stage: the stage of the action; None for an overlap, whose parts have one each.
        parts: of an overlap: the contexts of its parts, in the action's order.
        schedule_ref: the object that the function was registered with.
    """

    def __init__(
        self,
        action: Action,
        run: Run,
        owner: object,
        compute: Callable[[], None],
        unit: Unit | None = None,
        record: Record | None = None,
        *,
        parts: Sequence[ActionContext] = (),
    ) -> None:
        self.action, self.schedule_ref, self.parts = action, owner, tuple(parts)
        self._run, self._unit, self._held, self._compute = run, unit, record, compute

    def run(self) -> None:
        """Do what would be done without the custom function."""
        self._compute()

    @property
    def stage(self) -> Stage | None:
        """The stage of the action."""
        return None if self._unit is None else self._unit.stage

    @property
    def microbatch(self) -> int | None:
        """The microbatch of the action; None where there is none, or several."""
        return None if self._held is None else self._held.microbatch

    @property
    def args(self) -> tuple[Tree, ...]:
        """What the module is called with: only in ``F``."""
        return self._record.args

    @property
    def kwargs(self) -> Mapping[str, Tree]:
        """The keyword arguments that the module is called with."""
        return self._record.kwargs

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors of the stage's input that want a gradient: leaves."""
        return self._record.leaves

    @property
    def output(self) -> Tree:
        """What the stage has given: in ``F``, once it was computed or delivered.

        Raises:
            ParameterError: nothing was yet.
        """
        if self._record.output is MISSING:
            raise ParameterError(f"{self.action} has no output (yet)")
        return self._record.output

    @property
    def outputs(self) -> list[Tensor]:
        """Where backward starts: the outputs that want a gradient, in pytree order, or the loss
        after the last stage."""
        return [root for root in self._record.roots if isinstance(root, Tensor)]

    @property
    def output_gradients(self) -> Gradients:
        """The gradients of ``outputs``; for a loss, its weight. None where there is none."""
        return self._record.gradients

    @property
    def loss(self) -> Tensor | None:
        """The microbatch's loss, attached to its graph; in ``B`` and ``I`` of the last stage."""
        is_last = self._unit is not None and self._unit.last
        return self.outputs[0] if is_last and self._record.roots else None

    @property
    def target(self) -> Tree:
        """The microbatch's target, if this rank has it."""
        targets = self._run.batch.targets
        return None if targets is None else targets[self._record.microbatch]

    @property
    def loss_kwargs(self) -> Mapping[str, Any]:
        """Keyword arguments of the loss function."""
        return self._run.loss_kwargs

    @property
    def state(self) -> dict[str, Any]:
        """Whatever the functions keep from ``F`` to ``B`` or ``W`` of one microbatch."""
        record = self._record
        if record.state is None:
            record.state = {}
        return record.state

    @property
    def arg_mbs(self) -> Sequence[Tree]:
        """The positional arguments of the first stage, by microbatch."""
        return self._run.batch.args

    @property
    def kwarg_mbs(self) -> Sequence[Mapping[str, Tree]]:
        """The keyword arguments, by microbatch."""
        return self._run.batch.kwargs

    @property
    def target_mbs(self) -> Sequence[Tree] | None:
        """The targets, by microbatch."""
        return self._run.batch.targets

    @property
    def losses(self) -> Mapping[int, Tensor]:
        """The losses computed so far, by microbatch: detached, unweighted."""
        return self._run.losses

    def deliver_output(self, output: Tree) -> None:
        """The stage's output, attached to its graph.

        Raises:
            ParameterError: the action is no ``F``.
        """
        if self.action.kind is not Kind.F:
            raise ParameterError(f"{self.action} gives no output; only an F does")
        self._record.output = output

    def deliver_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """A gradient, or None, for each of ``inputs``, instead of their ``.grad``.

        Raises:
            ParameterError: the action is no ``B`` or ``I``, or the gradients do not fit the inputs.
        """
        if self.action.kind not in (Kind.B, Kind.I):
            raise ParameterError(f"{self.action} gives no gradients; only a B or an I does")
        leaves = self._record.leaves
        fits = len(gradients) == len(leaves) and all(
            gradient is None or gradient.shape == leaf.shape
            for gradient, leaf in zip(gradients, leaves, strict=True)
        )
        if not fits:
            raise ParameterError(
                f"{self.action} wants gradients of shapes {[tuple(t.shape) for t in leaves]}, got "
                f"{[None if g is None else tuple(g.shape) for g in gradients]}"
            )
        self._record.returning = tuple(gradients)

    @property
    def _record(self) -> Record:
        if self._held is None:
            raise ParameterError(
                f"{self.action} belongs to no single microbatch"
                + ("; its parts do: ctx.parts" if self.parts else "")
            )
        return self._held


CustomFunction = Callable[[Action, ActionContext], None]


def register(
    functions: dict[Kind, CustomFunction], kind: Kind | str, function: CustomFunction
) -> None:
    """Add to ``functions``; see ``Pipeline.register_custom_function``.

    Raises:
        ParameterError: no function can compute the kind, or this is none.
    """
    chosen = Kind.__members__.get(kind) if isinstance(kind, str) else kind
    if chosen not in CUSTOMIZABLE:
        raise ParameterError(
            f"no custom function can compute {kind!s}: it must be one of "
            f"{', '.join(k.name for k in CUSTOMIZABLE)}"
            + ("; messages are the executor's" if chosen in KINDS else "")
        )
    if not callable(function):
        raise ParameterError(f"the custom function for {chosen.name} cannot be called")
    if chosen in functions:
        warnings.warn(
            f"the custom function for {chosen.name} is replaced", UserWarning, stacklevel=3
        )
    functions[chosen] = function


def check_trainable(
    schedule: Schedule,
    ranks: Iterable[int],
    functions: Mapping[Kind, CustomFunction],
    *,
    requires_autograd: bool,
) -> None:
    """Make sure that a step can compute gradients.

    Raises:
        ParameterError: it cannot.
    """
    if schedule.forward_only:
        raise ParameterError("this schedule runs no backward; call eval()")
    if torch.is_inference_mode_enabled() or not torch.is_grad_enabled():
        if requires_autograd or torch.is_inference_mode_enabled():
            raise ParameterError(
                "step() computes gradients, which are switched off here; use eval()"
            )
        _check_custom_only(schedule, ranks, functions)


def _check_custom_only(
    schedule: Schedule, ranks: Iterable[int], functions: Mapping[Kind, CustomFunction]
) -> None:
    """Make sure that custom functions compute all forwards and backwards of ``ranks``.

    Raises:
        ParameterError: they do not.
    """
    used = {action.kind for rank in ranks for action in schedule.programs[rank]}
    lacking = [kind.name for kind in _PASSES if kind in used and kind not in functions]
    if lacking:
        raise ParameterError(
            f"gradients are switched off here, and no custom function computes "
            f"{', '.join(lacking)}; register one for each, or switch gradients on"
        )
