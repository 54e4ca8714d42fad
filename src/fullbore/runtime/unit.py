"""A stage of this process, and what it holds for the microbatches under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from fullbore.ir import Schedule
from fullbore.runtime.backward import Root
from fullbore.runtime.stage import Stage
from fullbore.runtime.transport.base import Edge
from fullbore.runtime.tree import Handed, Tree

Gradients = tuple[Tensor | None, ...]

MISSING = object()
"""The output of a forward that has given none."""


class Record:
    """One microbatch in one stage, from its forward to its last backward.

    Attributes:
        args, kwargs: what the module is called with; the former until the forward is done.
        output: what the module returned; until it is handed on.
        leaves: the tensors of the input that want a gradient.
        fed: whether a first stage's input has tensors that want no gradient.
        origins: what the caller made those tensors of a first stage from that want a gradient.
        roots: where backward starts: the loss, or the outputs that want a gradient.
        gradients: one for each root; while backward runs.
        returning: the gradients of the leaves, if a custom function gave them.
        raw_gradients: those of leaves that do not lie row by row, by the leaf's id. Autograd gives
            ``.grad`` the strides of the leaf; a plain loop hands on the gradient as it is, and
            another order in memory rounds differently.
        weights: does the second half of a split backward.
        state: a custom function's own.
    """

    __slots__ = (
        "args",
        "fed",
        "gradients",
        "kwargs",
        "leaves",
        "microbatch",
        "origins",
        "output",
        "raw_gradients",
        "returning",
        "roots",
        "state",
        "weights",
    )

    def __init__(self, microbatch: int) -> None:
        self.microbatch = microbatch
        self.args: tuple[Tree, ...] = ()
        self.kwargs: Mapping[str, Tree] = {}
        self.output: Tree = MISSING
        self.leaves: list[Tensor] = []
        self.fed = False
        self.origins: list[Tensor] = []
        self.roots: list[Root] = []
        self.gradients: Gradients = ()
        self.returning: Gradients | None = None
        self.raw_gradients: dict[int, Tensor] = {}
        self.weights: Callable[[], object] | None = None
        self.state: dict[str, Any] | None = None

    def watch_strides(self) -> None:
        """Keep the gradients of leaves that do not lie row by row."""
        for leaf in self.leaves:
            if not leaf.is_contiguous():
                keep = partial(self.raw_gradients.__setitem__, id(leaf))
                leaf.register_hook(keep)  # type: ignore[no-untyped-call] # torch's


class Unit:
    """A stage of this process.

    Attributes:
        above, below: the edges to the neighbours; None where the neighbour lives on the same rank.
        previous, following: the neighbours on the same rank.
        inputs, gradients: what a neighbour on the same rank has handed over, by microbatch.
        outgoing, returning: what waits to be sent.
        records: the microbatches under way.
    """

    def __init__(self, stage: Stage, schedule: Schedule) -> None:
        index, ranks = stage.index, schedule.placement.ranks
        self.stage, self.index = stage, index
        self.first, self.last = index == 0, index == len(ranks) - 1
        self.above = self._edge(schedule, index - 1, index) if not self.first else None
        self.below = self._edge(schedule, index, index + 1) if not self.last else None
        self.previous: Unit | None = None
        self.following: Unit | None = None
        self.tag_f = self.tag_b = 0
        self.inputs: dict[int, Handed] = {}
        self.gradients: dict[int, Gradients] = {}
        self.outgoing: dict[int, Handed] = {}
        self.returning: dict[int, Gradients] = {}
        self.records: dict[int, Record] = {}

    @staticmethod
    def _edge(schedule: Schedule, sender: int, receiver: int) -> Edge | None:
        ranks = schedule.placement.ranks
        crosses = ranks[sender] != ranks[receiver]
        return (ranks[sender], ranks[receiver]) if crosses else None

    def clear(self) -> None:
        """Forget all microbatches."""
        for held in (self.inputs, self.gradients, self.outgoing, self.returning, self.records):
            held.clear()
