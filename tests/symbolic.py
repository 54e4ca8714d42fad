"""What a schedule computes, in symbols: a worker for the interpreter that needs no torch.

``run(schedule)`` interprets all ranks' programs in one executable order and ``reference`` says
what an unpipelined model computes; for a right schedule the two are equal::

    assert run(schedule) == reference(schedule)

Terms are nested tuples: ``("F", stage, microbatch, input)`` is an activation, ``("dx", stage,
microbatch, input, gradient)`` an input gradient, ``("dw", ...)`` a weight gradient.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from fullbore.execute import Call, Interpreter
from fullbore.ir import Action, Form, Kind, Placement, Schedule, executable_order

Term = tuple[Hashable, ...]
Tag = tuple[str, int, int]  # F or B, the stage that uses the message, the microbatch


class WrongUse(Exception):
    """The schedule did something that makes no sense at this point."""


@dataclass(frozen=True)
class Result:
    """What came out.

    Attributes:
        outputs: the last stage's output, by microbatch.
        weight_gradients: for each stage, the terms added to its gradient.
        accumulated: for each stage, the microbatches in the order in which they were added.
    """

    outputs: dict[int, Term]
    weight_gradients: tuple[Counter[Term], ...]
    accumulated: tuple[tuple[int, ...], ...] = field(compare=False)


def reference(schedule: Schedule) -> Result:
    """What a plain loop over the microbatches computes with the schedule's stages."""
    num_stages, microbatches = schedule.num_stages, range(schedule.num_microbatches)
    gradients: list[Counter[Term]] = [Counter() for _ in range(num_stages)]
    outputs: dict[int, Term] = {}
    for m in microbatches:
        inputs: list[Term] = [("x", m)]
        for s in range(num_stages):
            inputs.append(("F", s, m, inputs[s]))
        outputs[m] = inputs[-1]
        gradient: Term = ("dloss", m, inputs[-1])
        for s in reversed(range(0 if schedule.forward_only else num_stages)):
            gradients[s]["dw", s, m, inputs[s], gradient] += 1
            gradient = ("dx", s, m, inputs[s], gradient)
    order = () if schedule.forward_only else tuple(microbatches)
    return Result(outputs, tuple(gradients), (order,) * num_stages)


def run(schedule: Schedule) -> Result:
    """What the schedule computes.

    Raises:
        WrongUse: it cannot run to its end, uses what is not there, takes the wrong message, or
            leaves something behind.
    """
    order = executable_order(schedule)
    if order.blocked:
        raise WrongUse("; ".join(f"rank {b.rank} is stuck at {b.action}" for b in order.blocked))
    worker = SymbolicWorker(schedule)
    actions = [(rank, schedule.programs[rank][step]) for rank, step in order.steps]
    Interpreter(actions, worker).run()
    worker.finish()
    return worker.result()


class Channel:
    """One directed edge between two ranks: the n-th receive takes the n-th message."""

    def __init__(self) -> None:
        self.sent: deque[tuple[Tag, Term]] = deque()
        self.posted: deque[Tag] = deque()

    def match(self) -> list[tuple[Tag, Term]]:
        """What arrives now."""
        arrived = []
        while self.sent and self.posted:
            (tag, value), wanted = self.sent.popleft(), self.posted.popleft()
            if tag != wanted:
                raise WrongUse(f"a receive for {wanted} takes the message {tag}")
            arrived.append((tag, value))
        return arrived


class SymbolicWorker:
    """Does all ranks' work. Receives are posted; the compute that uses one must find it there."""

    def __init__(self, schedule: Schedule) -> None:
        self.placement: Placement = schedule.placement
        self.num_microbatches = schedule.num_microbatches
        self.forward_only = schedule.forward_only
        self.lowered = schedule.form is Form.LOWERED
        leaves = (leaf for _, _, action in schedule.actions() for leaf in action.leaves)
        self.sharded = {leaf.stage for leaf in leaves if leaf.kind is Kind.UNSHARD}
        self.unsharded: set[int] = set()
        self.reduced: set[int] = set()
        self.channels: defaultdict[tuple[int, int], Channel] = defaultdict(Channel)
        self.arrived: dict[Tag, Term] = {}
        self.unsent: dict[Tag, Term] = {}
        self.saved: dict[tuple[int, int], Term] = {}
        self.kept: dict[tuple[int, int], Term] = {}
        self.outputs: dict[int, Term] = {}
        self.gradients: list[list[tuple[int, Term]]] = [[] for _ in self.placement.ranks]

    def forward(self, stage: int, microbatch: int) -> None:
        self._check_open(stage)
        if (stage, microbatch) in self.saved:
            raise WrongUse(f"{stage}F{microbatch} runs twice")
        given = ("x", microbatch) if stage == 0 else self._take(("F", stage, microbatch))
        output: Term = ("F", stage, microbatch, given)
        self.saved[stage, microbatch] = given
        if stage < len(self.placement.ranks) - 1:
            self._deliver(("F", stage + 1, microbatch), output, source=stage)
            return
        self.outputs[microbatch] = output

    def backward(self, stage: int, microbatch: int) -> None:
        self.backward_input(stage, microbatch)
        self.backward_weight(stage, microbatch)

    def backward_input(self, stage: int, microbatch: int) -> None:
        self._check_open(stage)
        if (stage, microbatch) not in self.saved:
            raise WrongUse(f"the backward of {stage}, {microbatch} finds nothing saved")
        given, gradient = self.saved.pop((stage, microbatch)), self._gradient(stage, microbatch)
        self.kept[stage, microbatch] = ("dw", stage, microbatch, given, gradient)
        if stage > 0:
            term = ("dx", stage, microbatch, given, gradient)
            self._deliver(("B", stage - 1, microbatch), term, source=stage)

    def backward_weight(self, stage: int, microbatch: int) -> None:
        self._check_open(stage)
        if (stage, microbatch) not in self.kept:
            raise WrongUse(f"{stage}W{microbatch} finds nothing kept")
        if stage in self.reduced:
            raise WrongUse(f"stage {stage} is already reduced")
        self.gradients[stage].append((microbatch, self.kept.pop((stage, microbatch))))

    def send_forward(self, stage: int, microbatch: int) -> None:
        self._send(("F", stage + 1, microbatch), source=stage)

    def recv_forward(self, stage: int, microbatch: int) -> None:
        self._post(("F", stage, microbatch), source=stage - 1)

    def send_backward(self, stage: int, microbatch: int) -> None:
        self._send(("B", stage - 1, microbatch), source=stage)

    def recv_backward(self, stage: int, microbatch: int) -> None:
        self._post(("B", stage, microbatch), source=stage + 1)

    def unshard(self, stage: int) -> None:
        if stage in self.unsharded:
            raise WrongUse(f"stage {stage} is unsharded twice")
        self.unsharded.add(stage)

    def reshard(self, stage: int) -> None:
        self._check_open(stage)
        self.unsharded.discard(stage)

    def reduce_grad(self, stage: int) -> None:
        if len(self.gradients[stage]) < self.num_microbatches or stage in self.reduced:
            raise WrongUse(f"{stage}REDUCE_GRAD comes too early or twice")
        self.reduced.add(stage)

    def together(self, action: Action, parts: Sequence[Call]) -> None:
        for part in parts:
            part()

    def finish(self) -> None:
        """Nothing may be left over."""
        for channel in self.channels.values():
            if channel.sent or channel.posted:
                raise WrongUse(f"left: messages {channel.sent}, receives {channel.posted}")
        saved = {} if self.forward_only else self.saved
        left = [*self.arrived, *self.unsent, *saved, *self.kept, *self.unsharded]
        if left:
            raise WrongUse(f"left: {left}")

    def result(self) -> Result:
        counters = tuple(Counter(term for _, term in added) for added in self.gradients)
        orders = tuple(tuple(m for m, _ in added) for added in self.gradients)
        return Result(self.outputs, counters, orders)

    def _gradient(self, stage: int, microbatch: int) -> Term:
        if stage < len(self.placement.ranks) - 1:
            return self._take(("B", stage, microbatch))
        return ("dloss", microbatch, self.outputs[microbatch])

    def _check_open(self, stage: int) -> None:
        if stage in self.sharded and stage not in self.unsharded:
            raise WrongUse(f"stage {stage} is not unsharded")

    def _edge(self, tag: Tag, source: int) -> Channel:
        ranks = self.placement.ranks
        if ranks[source] == ranks[tag[1]] or not self.lowered:
            raise WrongUse(f"{tag} is no message between ranks")
        return self.channels[ranks[source], ranks[tag[1]]]

    def _deliver(self, tag: Tag, value: Term, *, source: int) -> None:
        ranks = self.placement.ranks
        remote = self.lowered and ranks[source] != ranks[tag[1]]
        (self.unsent if remote else self.arrived)[tag] = value

    def _take(self, tag: Tag) -> Term:
        if tag not in self.arrived:
            raise WrongUse(f"{tag} has not arrived")
        return self.arrived.pop(tag)

    def _send(self, tag: Tag, *, source: int) -> None:
        if tag not in self.unsent:
            raise WrongUse(f"{tag} is not there to be sent")
        channel = self._edge(tag, source)
        channel.sent.append((tag, self.unsent.pop(tag)))
        self.arrived.update(channel.match())

    def _post(self, tag: Tag, *, source: int) -> None:
        channel = self._edge(tag, source)
        channel.posted.append(tag)
        self.arrived.update(channel.match())
