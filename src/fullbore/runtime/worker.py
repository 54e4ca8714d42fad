"""The torch worker: does what the interpreter asks, with real modules and tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from fullbore.errors import ParameterError, TransportError
from fullbore.execute import Call
from fullbore.ir import Action, Kind, Schedule
from fullbore.runtime.backward import full_backward
from fullbore.runtime.compute import (
    backward,
    backward_input,
    backward_weight,
    checked_loss,
    first_input,
    forward,
)
from fullbore.runtime.custom import ActionContext, CustomFunction, Run
from fullbore.runtime.seeds import microbatch_seed, on_this_thread
from fullbore.runtime.sharding import Sharding
from fullbore.runtime.stage import Stage
from fullbore.runtime.transport.base import Transport, make_tag
from fullbore.runtime.tree import (
    Handed,
    Tree,
    ask_for_gradients,
    boundary_tensors,
    detach,
    tensors,
    without_graph,
)
from fullbore.runtime.unit import MISSING, Record, Unit

_MAX_WEIGHTS = 1024


@dataclass(slots=True)
class _Steps:
    """How an action of one kind is done: take what it needs, compute, give away what comes of it.
    Custom functions replace the second step only."""

    kind: Kind
    take: Callable[[Unit, int], Record]
    compute: Callable[[Unit, Record], None]
    give: Callable[[Unit, Record], None]


class _Work(NamedTuple):
    """An action under way; ``context.run()`` computes it."""

    steps: _Steps
    unit: Unit
    record: Record
    context: ActionContext


class StageWorker:
    """Runs the stages of this process for one lowered schedule.

    Args:
        schedule: in the LOWERED form.
        stages: this process's stages, by index.
        transport: carries what crosses ranks.
        shardings: what to do for each stage's DDP and FSDP2 wrappers.
        custom: the user's functions, by kind; may grow later.
        owner: what custom functions know as ``schedule_ref``.
    """

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, Stage],
        *,
        transport: Transport,
        shardings: Mapping[int, Sequence[Sharding]],
        custom: Mapping[Kind, CustomFunction],
        owner: object,
    ) -> None:
        self._units = {index: Unit(stage, schedule) for index, stage in stages.items()}
        for index, unit in self._units.items():
            if not unit.first and unit.above is None:
                unit.previous = self._units[index - 1]
            if not unit.last and unit.below is None:
                unit.following = self._units[index + 1]
        self._transport, self._custom, self._owner = transport, custom, owner
        self._shardings = shardings
        self._run: Run | None = None
        self._unit_weights: dict[tuple[float, torch.dtype, torch.device], Tensor] = {}
        self._f = _Steps(Kind.F, self._take_input, self._run_module, self._hand_on)
        self._b = _Steps(Kind.B, self._take_gradients, backward, self._finish_backward)
        self._i = _Steps(Kind.I, self._take_gradients, backward_input, self._hand_back)
        self._w = _Steps(Kind.W, _take_rest, backward_weight, _nothing)
        self._steps = {steps.kind: steps for steps in (self._f, self._b, self._i, self._w)}

    def begin(self, run: Run) -> None:
        """Start on ``run``."""
        self._run = run
        for unit in self._units.values():
            unit.tag_f = make_tag(run.epoch, unit.index, 0, backward=False)
            unit.tag_b = make_tag(run.epoch, unit.index, 0, backward=True)

    def finish(self) -> None:
        """After the last action: see to what the schedule left of sharding and reduction."""
        for shardings in self._shardings.values():
            for sharding in shardings:
                sharding.finish()

    def clear(self) -> None:
        """Forget the run and everything that is held for it."""
        self._run = None
        for unit in self._units.values():
            unit.clear()

    def forward(self, stage: int, microbatch: int) -> None:
        """F: run the module on what the stage before gave; compute the loss after the last."""
        self._do(self._f, stage, microbatch)

    def backward(self, stage: int, microbatch: int) -> None:
        """B: gradients of input and weights at once."""
        self._do(self._b, stage, microbatch)

    def backward_input(self, stage: int, microbatch: int) -> None:
        """I: the gradient of the input; what the weights' gradients need is kept for W."""
        self._do(self._i, stage, microbatch)

    def backward_weight(self, stage: int, microbatch: int) -> None:
        """W: what I left for later."""
        self._do(self._w, stage, microbatch)

    def send_forward(self, stage: int, microbatch: int) -> None:
        """SEND_F: give away the stage's output."""
        unit = self._units[stage]
        assert unit.below is not None
        tag = make_tag(self._current.epoch, stage + 1, microbatch, backward=False)
        self._transport.send(unit.below, tag, unit.outgoing.pop(microbatch).take())

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
        """UNSHARD: gather the stage's parameters; a plain module's are always whole."""
        self._manage(Kind.UNSHARD, stage, lambda sharding: sharding.unshard())

    def reshard(self, stage: int) -> None:
        """RESHARD: free the gathered parameters; a plain module's stay whole."""
        self._manage(Kind.RESHARD, stage, lambda sharding: sharding.reshard())

    def reduce_grad(self, stage: int) -> None:
        """REDUCE_GRAD: reduce the stage's gradients; a plain module's are this rank's alone."""
        self._manage(Kind.REDUCE_GRAD, stage, lambda sharding: sharding.reduce())

    def together(self, action: Action, parts: Sequence[Call]) -> None:
        """Run the parts of a fused action one after another; receives only post. A custom function
        for overlaps may run them at once."""
        custom = self._custom.get(action.kind) if self._custom else None
        if custom is None:
            for part in parts:
                part()
            return
        works = [self._begin(part) for part in action.parts]
        contexts = [work.context for work in works]

        def run_parts() -> None:
            for context in contexts:
                context.run()

        whole = ActionContext(action, self._current, self._owner, run_parts, parts=contexts)
        custom(action, whole)
        for work in works:
            self._end(work)

    @property
    def _current(self) -> Run:
        assert self._run is not None
        return self._run

    def _do(self, steps: _Steps, stage: int, microbatch: int) -> None:
        if self._custom and steps.kind in self._custom:
            work = self._begin(Action(stage, steps.kind, microbatch))
            work.context.run()
            self._end(work)
            return
        unit, shardings = self._units[stage], self._shardings[stage]
        for sharding in shardings:
            sharding.ready()
        record = steps.take(unit, microbatch)
        steps.compute(unit, record)
        for sharding in shardings:
            sharding.settle()
        steps.give(unit, record)

    def _begin(self, action: Action) -> _Work:
        assert action.microbatch is not None
        unit, steps = self._units[action.stage], self._steps[action.kind]
        for sharding in self._shardings[action.stage]:
            sharding.ready()
        record = steps.take(unit, action.microbatch)

        def context(compute: Call) -> ActionContext:
            return ActionContext(action, self._current, self._owner, compute, unit, record)

        compute: Call = partial(steps.compute, unit, record)
        if self._current.seed is not None:
            compute = on_this_thread(compute)
        builtin, custom = context(compute), self._custom.get(action.kind)
        chosen = builtin if custom is None else context(partial(custom, action, builtin))
        return _Work(steps, unit, record, chosen)

    def _end(self, work: _Work) -> None:
        if work.steps.kind is Kind.F and work.record.output is MISSING:
            raise ParameterError(
                f"the custom function delivered no output for {work.context.action}; call "
                "ctx.deliver_output(output), or ctx.run() for the built-in forward"
            )
        for sharding in self._shardings[work.unit.index]:
            sharding.settle()
        work.steps.give(work.unit, work.record)

    def _manage(self, kind: Kind, stage: int, manage_one: Callable[[Sharding], None]) -> None:
        shardings = self._shardings[stage]

        def manage() -> None:
            for sharding in shardings:
                manage_one(sharding)

        custom = self._custom.get(kind) if self._custom else None
        if custom is None:
            manage()
            return
        action, unit = Action(stage, kind), self._units[stage]
        custom(action, ActionContext(action, self._current, self._owner, manage, unit))
        if kind is Kind.REDUCE_GRAD:
            for sharding in shardings:
                sharding.reduced = True

    def _take_input(self, unit: Unit, microbatch: int) -> Record:
        """What the stage's module is called with; remembers the leaves that want a gradient."""
        run = self._current
        record = Record(microbatch)
        record.kwargs = run.batch.kwargs[microbatch]
        if unit.first:
            value: Tree = run.batch.args[microbatch]
            if run.weights is not None:
                value = first_input(record, value)
        else:
            if unit.above is None:
                value = unit.inputs.pop(microbatch).take()
            else:
                value = self._transport.recv(unit.above, unit.tag_f + 2 * microbatch)
            if run.weights is not None:
                record.leaves = [leaf for leaf in tensors(value) if leaf.requires_grad]
                record.watch_strides()
        record.args = tuple(value) if type(value) in (tuple, list) else (value,)
        return record

    def _run_module(self, unit: Unit, record: Record) -> None:
        seed = self._current.seed
        if seed is None:
            forward(unit, record)
            return
        with microbatch_seed(seed, record.microbatch, stage=unit.index):
            forward(unit, record)

    def _hand_on(self, unit: Unit, record: Record) -> None:
        """Give the stage's output to the next one; compute the loss after the last."""
        run, output = self._current, record.output
        record.args, record.output = (), MISSING
        if run.weights is not None and not torch.is_grad_enabled():
            ask_for_gradients(output)
        found = self._finish_forward(run, record, output) if unit.last else boundary_tensors(output)
        if unit.following is not None:
            unit.following.inputs[record.microbatch] = Handed.of(detach(output))
        elif not unit.last:
            unit.outgoing[record.microbatch] = Handed.of(output)
        if run.weights is None:
            return
        # Once it is sent, backward needs of an output only its place in the graph.
        keep = unit.last or self._custom
        record.roots = [t if keep else get_gradient_edge(t) for t in found if t.requires_grad]
        unit.records[record.microbatch] = record

    def _take_gradients(self, unit: Unit, microbatch: int) -> Record:
        """The gradients of the stage's outputs, one for each root."""
        record = unit.records[microbatch]
        if unit.last:
            record.gradients = (self._weight(record),) if record.roots else ()
            return record
        if unit.below is None:
            gradients = unit.gradients.pop(microbatch)
        else:
            gradients = self._transport.recv(unit.below[::-1], unit.tag_b + 2 * microbatch)
        if len(gradients) != len(record.roots):
            raise TransportError(
                f"{len(gradients)} gradients came back for {len(record.roots)} outputs that want "
                "one"
            )
        record.gradients = gradients
        return record

    def _hand_back(self, unit: Unit, record: Record) -> None:
        """Give the gradients of the stage's inputs to whoever made the inputs."""
        leaves, gradients = record.leaves, record.returning
        if gradients is None:
            gradients = tuple(record.raw_gradients.pop(id(leaf), leaf.grad) for leaf in leaves)
        for leaf in leaves:
            leaf.grad = None
        record.leaves, record.gradients, record.roots = [], (), []
        if unit.first:
            full_backward(record.origins, gradients)
            record.origins = []
        elif unit.previous is not None:
            unit.previous.gradients[record.microbatch] = gradients
        else:
            unit.returning[record.microbatch] = gradients

    def _finish_backward(self, unit: Unit, record: Record) -> None:
        self._hand_back(unit, record)
        del unit.records[record.microbatch]

    def _finish_forward(self, run: Run, record: Record, output: Tree) -> list[Tensor]:
        """Keep the last stage's output if asked for, compute its loss; the roots of backward."""
        microbatch = record.microbatch
        if run.keep_outputs:
            run.outputs[microbatch] = without_graph(output)
        targets = run.batch.targets
        if run.loss_fn is None or targets is None:
            return []
        loss = checked_loss(run.loss_fn(output, targets[microbatch], **run.loss_kwargs))
        if run.weights is not None and not torch.is_grad_enabled():
            ask_for_gradients(loss)
        # A copy: the loss may be a small view of something large, or change in place later.
        kept = loss.detach().clone()
        run.losses[microbatch] = kept if kept.dim() == 0 else kept.reshape(())
        run.has_graph |= loss.requires_grad
        if run.weights is not None and not run.has_graph and len(run.losses) == len(targets):
            raise ParameterError(
                "no loss of this step requires grad: nothing that can be trained leads to it; is a "
                "detach(), item() or no_grad() on the way, or is every parameter frozen?"
            )
        return [loss]

    def _weight(self, record: Record) -> Tensor:
        """The gradient of the loss: the microbatch's weight, made once a value."""
        (loss,), weights = record.roots, self._current.weights
        assert weights is not None
        assert isinstance(loss, Tensor)
        key = (weights[record.microbatch], loss.dtype, loss.device)
        weight = self._unit_weights.get(key)
        if weight is None or weight._version:  # a hook of the user's may have changed it
            if len(self._unit_weights) >= _MAX_WEIGHTS:
                self._unit_weights.clear()
            weight = torch.tensor(key[0], dtype=key[1], device=key[2])
            self._unit_weights[key] = weight
        return weight if loss.dim() == 0 else weight.expand_as(loss)


def _take_rest(unit: Unit, microbatch: int) -> Record:
    return unit.records.pop(microbatch)


def _nothing(*_: object) -> None:
    """A record that is done is let go."""
