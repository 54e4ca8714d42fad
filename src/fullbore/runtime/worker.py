"""The torch worker: does what the interpreter asks, with real modules and tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fullbore.errors import ParameterError, TransportError
from fullbore.execute import Call
from fullbore.ir import Action, Kind, Schedule
from fullbore.runtime.backward import SplitBackward, full_backward
from fullbore.runtime.microbatch import Batch
from fullbore.runtime.stage import Stage
from fullbore.runtime.transport.base import Edge, Transport, make_tag
from fullbore.runtime.tree import (
    Tree,
    boundary_tensors,
    detach,
    is_differentiable,
    tensors,
    without_graph,
)

LossFn = Callable[..., Tensor]
Gradients = tuple[Tensor | None, ...]

_MAX_WEIGHTS = 1024


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
        weights: what each microbatch's loss counts for; None in evaluation.
        losses, outputs: by microbatch, on the rank of the last stage.
        has_graph: whether any of these losses requires grad.
    """

    batch: Batch
    epoch: int
    loss_kwargs: Mapping[str, Any]
    keep_outputs: bool
    loss_fn: LossFn | None
    weights: Sequence[float] | None = None
    losses: dict[int, Tensor] = field(default_factory=dict)
    outputs: dict[int, Tree] = field(default_factory=dict)
    has_graph: bool = False


class _Unit:
    """A stage of this process, and what it holds for the microbatches under way."""

    def __init__(self, stage: Stage, schedule: Schedule) -> None:
        index, ranks = stage.index, schedule.placement.ranks
        self.index, self.module = index, stage.module
        self.first, self.last = index == 0, index == len(ranks) - 1
        self.splits = any(
            leaf.kind is Kind.I and leaf.stage == index
            for action in schedule.programs[ranks[index]]
            for leaf in action.leaves
        )
        # Edges are None where the neighbour lives on the same rank.
        self.above = self._edge(schedule, index - 1, index) if not self.first else None
        self.below = self._edge(schedule, index, index + 1) if not self.last else None
        self.previous: _Unit | None = None
        self.following: _Unit | None = None
        self.tag_f = self.tag_b = 0
        self.inputs: dict[int, Tree] = {}
        self.leaves: dict[int, list[Tensor]] = {}
        self.roots: dict[int, list[Tensor]] = {}
        self.gradients: dict[int, Gradients] = {}
        self.halves: dict[int, SplitBackward] = {}
        self.outgoing: dict[int, Tree] = {}
        self.returning: dict[int, Gradients] = {}
        self.origins: dict[int, list[Tensor]] = {}
        self.raw: dict[int, list[Tensor]] = {}

    @staticmethod
    def _edge(schedule: Schedule, sender: int, receiver: int) -> Edge | None:
        ranks = schedule.placement.ranks
        crosses = ranks[sender] != ranks[receiver]
        return (ranks[sender], ranks[receiver]) if crosses else None

    def clear(self) -> None:
        """Forget all microbatches."""
        for held in (self.inputs, self.leaves, self.roots, self.gradients, self.halves):
            held.clear()
        for held in (self.outgoing, self.returning, self.origins, self.raw):
            held.clear()


class StageWorker:
    """Runs the stages of this process for one lowered schedule.

    Args:
        schedule: in the LOWERED form.
        stages: this process's stages, by index.
        transport: carries what crosses ranks.
    """

    def __init__(
        self, schedule: Schedule, stages: Mapping[int, Stage], *, transport: Transport
    ) -> None:
        self._units = {index: _Unit(stage, schedule) for index, stage in stages.items()}
        for index, unit in self._units.items():
            if not unit.first and unit.above is None:
                unit.previous = self._units[index - 1]
            if not unit.last and unit.below is None:
                unit.following = self._units[index + 1]
        self._transport = transport
        self._run: Run | None = None
        self._unit_weights: dict[tuple[float, torch.dtype, torch.device], Tensor] = {}

    def begin(self, run: Run) -> None:
        """Start on ``run``."""
        self._run = run
        for unit in self._units.values():
            unit.tag_f = make_tag(run.epoch, unit.index, 0, backward=False)
            unit.tag_b = make_tag(run.epoch, unit.index, 0, backward=True)

    def clear(self) -> None:
        """Forget the run and everything that is held for it."""
        self._run = None
        for unit in self._units.values():
            unit.clear()

    def forward(self, stage: int, microbatch: int) -> None:
        """F: run the module on what the stage before gave; compute the loss after the last."""
        unit, run = self._units[stage], self._current
        value = self._input(unit, microbatch)
        arguments = tuple(value) if type(value) in (tuple, list) else (value,)
        output = unit.module(*arguments, **run.batch.kwargs[microbatch])
        roots = self._finish(run, microbatch, output) if unit.last else boundary_tensors(output)
        if unit.following is not None:
            unit.following.inputs[microbatch] = detach(output)
        elif not unit.last:
            unit.outgoing[microbatch] = output
        if run.weights is not None:
            unit.roots[microbatch] = [root for root in roots if root.requires_grad]

    def backward(self, stage: int, microbatch: int) -> None:
        """B: gradients of input and weights at once."""
        unit = self._units[stage]
        gradients = self._gradients(unit, microbatch)
        full_backward(unit.roots.pop(microbatch), gradients)
        unit.raw.pop(microbatch, None)
        self._hand_back(unit, microbatch)

    def backward_input(self, stage: int, microbatch: int) -> None:
        """I: the gradient of the input; what the weights' gradients need is kept for W."""
        unit = self._units[stage]
        gradients = self._gradients(unit, microbatch)
        split = SplitBackward(
            unit.roots.pop(microbatch),
            unit.leaves[microbatch],
            data=unit.raw.pop(microbatch, ()),
        )
        split.input_backward(gradients)
        unit.halves[microbatch] = split
        self._hand_back(unit, microbatch)

    def backward_weight(self, stage: int, microbatch: int) -> None:
        """W: what I left for later."""
        self._units[stage].halves.pop(microbatch).weight_backward()

    def send_forward(self, stage: int, microbatch: int) -> None:
        """SEND_F: give away the stage's output."""
        unit = self._units[stage]
        assert unit.below is not None
        tag = make_tag(self._current.epoch, stage + 1, microbatch, backward=False)
        self._transport.send(unit.below, tag, unit.outgoing.pop(microbatch))

    def recv_forward(self, stage: int, microbatch: int) -> None:
        """RECV_F: post the receive; F waits for it."""
        unit = self._units[stage]
        assert unit.above is not None
        self._transport.post(unit.above, unit.tag_f + 2 * microbatch)

    def send_backward(self, stage: int, microbatch: int) -> None:
        """SEND_B: give away the gradients of the stage's input."""
        unit = self._units[stage]
        assert unit.above is not None
        tag = make_tag(self._current.epoch, stage - 1, microbatch, backward=True)
        self._transport.send(unit.above[::-1], tag, unit.returning.pop(microbatch))

    def recv_backward(self, stage: int, microbatch: int) -> None:
        """RECV_B: post the receive; B or I waits for it."""
        unit = self._units[stage]
        assert unit.below is not None
        self._transport.post(unit.below[::-1], unit.tag_b + 2 * microbatch)

    def unshard(self, stage: int) -> None:
        """UNSHARD: the parameters of a plain module are always whole."""

    def reshard(self, stage: int) -> None:
        """RESHARD: the parameters of a plain module stay whole."""

    def reduce_grad(self, stage: int) -> None:
        """REDUCE_GRAD: the gradients of a plain module are this rank's alone."""

    def together(self, action: Action, parts: Sequence[Call]) -> None:
        """Run the parts of a fused action one after another; receives only post."""
        for part in parts:
            part()

    @property
    def _current(self) -> Run:
        assert self._run is not None
        return self._run

    def _input(self, unit: _Unit, microbatch: int) -> Tree:
        """What the stage's module is called with; remembers the leaves that want a gradient."""
        run = self._current
        if unit.first:
            value: Tree = run.batch.args[microbatch]
            return value if run.weights is None else self._first_input(unit, microbatch, value)
        if unit.above is None:
            value = unit.inputs.pop(microbatch)
        else:
            value = self._transport.recv(unit.above, unit.tag_f + 2 * microbatch)
        if run.weights is not None:
            unit.leaves[microbatch] = [leaf for leaf in tensors(value) if leaf.requires_grad]
        return value

    @staticmethod
    def _first_input(unit: _Unit, microbatch: int, value: Tree) -> Tree:
        """The batch's arguments, cut from the graph that the caller may have built before them.

        Under a split backward, a tensor that asks for no gradient is made to, so that the layers
        after it count as fed by data; its gradient is never computed.
        """
        given = tensors(value)
        origins = unit.origins[microbatch] = [t for t in given if t.requires_grad]
        raw = unit.splits and any(is_differentiable(t) for t in given)
        if not origins and not raw:
            unit.leaves[microbatch] = []
            return value
        value = detach(value)
        leaves = [t for t in tensors(value) if is_differentiable(t)]
        unit.leaves[microbatch] = [t for t in leaves if t.requires_grad]
        if unit.splits:
            unit.raw[microbatch] = [t for t in leaves if not t.requires_grad]
            for tensor in unit.raw[microbatch]:
                tensor.requires_grad_()
        return value

    def _finish(self, run: Run, microbatch: int, output: Tree) -> list[Tensor]:
        """Keep the last stage's output if asked for, compute its loss; the roots of backward."""
        if run.keep_outputs:
            run.outputs[microbatch] = without_graph(output)
        targets = run.batch.targets
        if run.loss_fn is None or targets is None:
            return []
        loss = _checked(run.loss_fn(output, targets[microbatch], **run.loss_kwargs))
        # A copy: the loss may be a small view of something large, or change in place later.
        run.losses[microbatch] = loss.detach().clone().reshape(())
        run.has_graph |= loss.requires_grad
        if run.weights is not None and not run.has_graph and len(run.losses) == len(targets):
            raise ParameterError(
                "no loss of this step requires grad: nothing that can be trained leads to it; is a "
                "detach(), item() or no_grad() on the way, or is every parameter frozen?"
            )
        return [loss]

    def _gradients(self, unit: _Unit, microbatch: int) -> Gradients:
        """The gradients of the stage's outputs, one for each root."""
        count = len(unit.roots[microbatch])
        if unit.last:
            return (self._weight(unit, microbatch),) if count else ()
        if unit.below is None:
            gradients = unit.gradients.pop(microbatch)
        else:
            gradients = self._transport.recv(unit.below[::-1], unit.tag_b + 2 * microbatch)
        if len(gradients) != count:
            raise TransportError(
                f"{len(gradients)} gradients came back for {count} outputs that want one"
            )
        return gradients

    def _weight(self, unit: _Unit, microbatch: int) -> Tensor:
        """The gradient of the loss: the microbatch's weight, made once a value."""
        (loss,), weights = unit.roots[microbatch], self._current.weights
        assert weights is not None
        key = (weights[microbatch], loss.dtype, loss.device)
        weight = self._unit_weights.get(key)
        if weight is None:
            if len(self._unit_weights) >= _MAX_WEIGHTS:
                self._unit_weights.clear()
            weight = torch.tensor(key[0], dtype=key[1], device=key[2])
            self._unit_weights[key] = weight
        return weight if loss.dim() == 0 else weight.expand_as(loss)

    def _hand_back(self, unit: _Unit, microbatch: int) -> None:
        """Give the gradients of the stage's inputs to whoever made the inputs."""
        leaves = unit.leaves.pop(microbatch)
        gradients = tuple(leaf.grad for leaf in leaves)
        for leaf in leaves:
            leaf.grad = None
        if unit.first:
            full_backward(unit.origins.pop(microbatch), gradients)
        elif unit.previous is not None:
            unit.previous.gradients[microbatch] = gradients
        else:
            unit.returning[microbatch] = gradients


def _checked(loss: object) -> Tensor:
    """What the loss function returned, if a gradient can start there."""
    if not isinstance(loss, Tensor):
        raise ParameterError(f"loss_fn must return a tensor, got {type(loss).__name__}")
    if loss.numel() != 1:
        raise ParameterError(
            f"loss_fn must return one number, got a tensor of shape {tuple(loss.shape)}; reduce it "
            "(mean or sum) first"
        )
    if loss.is_complex():
        raise ParameterError(f"loss_fn must return a real number, got {loss.dtype}")
    return loss
