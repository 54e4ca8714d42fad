"""Keeps what stages give, for those who want to look at it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from fullbore.errors import ParameterError
from fullbore.ir import Kind, Schedule
from fullbore.runtime import Pipeline
from fullbore.runtime.tree import Tree


class Watch:
    """The outputs of chosen stages in the last run, and the gradients of these outputs.

    Args:
        pipeline: whose stages are watched.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._handles: list[RemovableHandle] = []
        self._outputs: dict[int, list[Tree]] = {}
        self._gradients: dict[int, list[dict[int, Tensor]]] = {}

    def choose(self, stages: Sequence[int]) -> None:
        """Watch these from now on, as far as they are here, and no others."""
        for handle in self._handles:
            handle.remove()
        here = [stage for stage in stages if stage in self._pipeline.stages]
        self._outputs = {stage: [] for stage in here}
        self._gradients = {stage: [] for stage in here}
        self._handles = [
            self._pipeline.stages[stage].module.register_forward_hook(partial(self._keep, stage))
            for stage in here
        ]

    def begin(self) -> None:
        """A run begins: forget the one before."""
        for kept in (*self._outputs.values(), *self._gradients.values()):
            kept.clear()

    def found(self, stage: int) -> tuple[list[Tree], list[Tree]] | None:
        """The outputs and their gradients, by microbatch; None where a gradient was not computed.
        None if the stage is not here.

        Raises:
            ParameterError: it is here, and not watched; or nothing has run since.
        """
        if stage not in self._pipeline.stages:
            return None
        if not self._outputs.get(stage):
            raise ParameterError(
                f"nothing was kept of stage {stage}: call watch({stage}) before the run"
            )
        outputs = self._outputs[stage]
        gradients = [
            _with_gradients(*both) for both in zip(outputs, self._gradients[stage], strict=True)
        ]
        order = forwards(self._pipeline.schedule, stage)
        places = sorted(range(len(outputs)), key=order.__getitem__)
        return [outputs[at] for at in places], [gradients[at] for at in places]

    def _keep(self, stage: int, module: object, args: object, output: Tree) -> None:
        leaves, structure = pytree.tree_flatten(output)
        gradients: dict[int, Tensor] = {}
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and leaf.requires_grad and torch.is_grad_enabled():
                leaf.register_hook(_noting(gradients, place))  # type: ignore[no-untyped-call]
        kept = [_copy(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._outputs[stage].append(pytree.tree_unflatten(kept, structure))
        self._gradients[stage].append(gradients)


def forwards(schedule: Schedule, stage: int) -> list[int]:
    """The stage's microbatches in the order in which the schedule runs their forwards."""
    program = schedule.programs[schedule.placement.ranks[stage]]
    leaves = (leaf for action in program for leaf in action.leaves)
    return [
        leaf.microbatch
        for leaf in leaves
        if leaf.kind is Kind.F and leaf.stage == stage and leaf.microbatch is not None
    ]


def _noting(gradients: dict[int, Tensor], place: int) -> Callable[[Tensor], None]:
    def note(gradient: Tensor) -> None:
        gradients[place] = _copy(gradient)

    return note


def _with_gradients(output: Tree, gradients: dict[int, Tensor]) -> Any:
    leaves, structure = pytree.tree_flatten(output)
    return pytree.tree_unflatten([gradients.get(i) for i in range(len(leaves))], structure)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)
