"""What was measured while a schedule ran: costs that it shows, and how well they predict it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from fullbore.errors import ParameterError
from fullbore.ir import KINDS, Action, Group, Kind, Schedule
from fullbore.sim.costs import Edge, TableCosts
from fullbore.sim.timeline import Slot, Timeline, Transfer

SENDS = (Kind.SEND_F, Kind.SEND_B)


class Sample(NamedTuple):
    """One plain action that ran, in seconds on a clock that all ranks share.

    Attributes:
        action: what ran.
        start: when its rank turned to it.
        ready: when everything it waits for was there; ``start`` if it did not wait.
        end: when its rank was done with it.
        size: of what it sent, in bytes.
    """

    action: Action
    start: float
    ready: float
    end: float
    size: int = 0


Step = Sequence[Sequence[Sample]]
"""The samples of one step by rank, each rank's in the order in which they ran."""


@dataclass(frozen=True)
class Profile:
    """Some steps of one schedule, measured.

    Attributes:
        schedule: what ran, in the LOWERED form.
        steps: what was measured, a step after the other.

    Raises:
        ParameterError: there is no step, or one has another number of ranks than the schedule.
    """

    schedule: Schedule
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise ParameterError("a profile needs at least one step")
        if any(len(step) != self.schedule.num_ranks for step in self.steps):
            raise ParameterError(
                f"a profile needs every rank's samples in each step: {self.schedule.num_ranks}"
            )

    def step_times(self) -> tuple[float, ...]:
        """How long each step took, from the first start on any rank to the last end."""
        return tuple(
            max(s.end for rank in step for s in rank) - min(s.start for rank in step for s in rank)
            for step in self.steps
        )

    def costs(self, *, skip: int = 1) -> TableCosts:
        """The costs of each stage that the steps show: medians, in seconds.

        A cost is the time that the rank was busy with an action, waiting left out; ``send`` that of
        handing a message over. The latency of a link is that of the messages that somebody waited
        for: from the end of the send to the moment when its receiver could go on. A kind that the
        schedule does not have costs what the others tell: B = I + W, and I = W = B / 2.

        Args:
            skip: how many steps at the beginning to leave out, if there are more.
        """
        steps = self.steps[skip:] or self.steps
        busy: dict[tuple[Kind, int], list[float]] = defaultdict(list)
        sizes: dict[int, int] = {}
        delays: dict[Edge, list[float]] = defaultdict(list)
        for step in steps:
            for rank in step:
                for sample in rank:
                    stage, kind, _, _ = sample.action
                    busy[kind, stage].append(sample.end - sample.ready)
                    if kind in SENDS:
                        sizes[max(stage, stage + KINDS[kind].stage_step)] = sample.size
            for edge, delay in self._delays(step):
                delays[edge].append(delay)
        return _table(self.schedule, busy, sizes, delays)

    def timeline(self, step: int = -1) -> Timeline:
        """What one step looked like, from 0 on. A message is shown from its send until it was
        there, or until its receiver asked for it if that is not known better."""
        found = self.steps[step]
        origin = min(sample.start for rank in found for sample in rank)
        taken = dict(_receptions(self.schedule, found))
        ranks = self.schedule.placement.ranks
        transfers = []
        for rank in found:
            for sample in rank:
                stage, kind, _, _ = sample.action
                if kind in SENDS:
                    user = taken.get(sample.action)
                    end = sample.end if user is None else max(sample.end, user.ready)
                    edge = ranks[stage], ranks[stage + KINDS[kind].stage_step]
                    transfers.append(
                        Transfer(
                            sample.action, edge, sample.start - origin, end - origin, sample.size
                        )
                    )
        slots = tuple(
            tuple(Slot(s.action, s.ready - origin, s.end - origin) for s in rank) for rank in found
        )
        return Timeline(slots, tuple(transfers))

    def _delays(self, step: Step) -> Iterator[tuple[Edge, float]]:
        """How long messages took that were waited for, by link."""
        ranks, sends = self.schedule.placement.ranks, {}
        for rank in step:
            for sample in rank:
                if sample.action.kind in SENDS:
                    sends[sample.action] = sample
        for action, user in _receptions(self.schedule, step):
            sent = sends.get(action)
            if sent is not None and user.start < sent.end < user.ready:
                stage, kind, _, _ = action
                edge = ranks[stage], ranks[stage + KINDS[kind].stage_step]
                yield edge, user.ready - sent.end


def _receptions(schedule: Schedule, step: Step) -> Iterator[tuple[Action, Sample]]:
    """Each message, as its send, with the sample of the work that used it."""
    placement, last = schedule.placement, schedule.num_stages - 1
    for rank in step:
        for sample in rank:
            for stage, kind, microbatch, _ in sample.action.leaves:
                if kind is Kind.F and placement.crosses(stage):
                    yield Action(stage - 1, Kind.SEND_F, microbatch), sample
                elif kind in (Kind.B, Kind.I) and stage < last and placement.crosses(stage + 1):
                    yield Action(stage + 1, Kind.SEND_B, microbatch), sample


Busy = Mapping[tuple[Kind, int], Sequence[float]]


def _table(
    schedule: Schedule,
    busy: Busy,
    sizes: Mapping[int, int],
    delays: Mapping[Edge, Sequence[float]],
) -> TableCosts:
    stages = range(schedule.num_stages)

    def times(*kinds: Kind) -> list[float] | None:
        """By stage, the median of these kinds' samples; None if a stage has none."""
        found = [[t for kind in kinds for t in busy.get((kind, stage), ())] for stage in stages]
        return [median(samples) for samples in found] if all(found) else None

    full, split, rest = times(Kind.B), times(Kind.I), times(Kind.W)
    if split is None or rest is None:
        half = [time / 2 for time in full or [0.0] * len(stages)]
        split, rest = half, half
    sends = [
        [t for kind in SENDS for t in busy.get((kind, stage), ())] or [0.0] for stage in stages
    ]
    links = {edge: median(samples) for edge, samples in delays.items()}
    middle = median(links.values()) if links else 0.0
    ranks = schedule.placement.ranks
    edges = {edge for edge in pairwise(ranks) if edge[0] != edge[1]}
    pairs = {pair for edge in edges for pair in (edge, edge[::-1])}
    return TableCosts(
        F=times(Kind.F) or 0,
        I=split,
        W=rest,
        B=full,
        send=[median(samples) for samples in sends],
        latency={pair: links.get(pair, middle) for pair in sorted(pairs)},
        message_bytes=[sizes.get(stage, 0) for stage in stages],
        unit="s",
    )


class Spent(NamedTuple):
    """Where one rank's time went in a step, in seconds.

    Attributes:
        compute: F, B, I and W.
        receiving: waiting for what it receives.
        sending: handing messages over, and waiting to be allowed to.
        overhead: the rest, but for ``idle``.
        idle: before its first and after its last action of the step.
    """

    compute: float
    receiving: float
    sending: float
    overhead: float
    idle: float


def spent(step: Step) -> tuple[Spent, ...]:
    """Where each rank's time went."""
    begin = min(sample.start for rank in step for sample in rank)
    end = max(sample.end for rank in step for sample in rank)
    return tuple(_spent(rank, begin, end) for rank in step)


def _spent(rank: Sequence[Sample], begin: float, end: float) -> Spent:
    def total(times: Iterable[float]) -> float:
        return sum(times)

    compute = total(s.end - s.ready for s in rank if KINDS[s.action.kind].group is Group.COMPUTE)
    sending = total(s.end - s.start for s in rank if s.action.kind in SENDS)
    receiving = total(s.ready - s.start for s in rank if s.action.kind not in SENDS)
    first, last = min(s.start for s in rank), max(s.end for s in rank)
    overhead = last - first - compute - sending - receiving
    return Spent(compute, receiving, sending, overhead, (end - begin) - (last - first))
