"""What was measured while a schedule ran: costs that it shows, and how well they predict it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from statistics import fmean, median
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
        after: how long it took from then until its process turned to the next action.
    """

    action: Action
    start: float
    ready: float
    end: float
    size: int = 0
    after: float = 0.0


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
        """How long each step took, from the first work on any rank to the last end. A rank that
        begins early only to wait for another one does not make a step longer."""
        return tuple(end - begin for begin, end in map(_extent, self.steps))

    def costs(self, *, skip: int = 1) -> TableCosts:
        """The costs of each stage that the steps show, in seconds: medians over the steps of a
        step's mean over its microbatches. A disturbed step counts for nothing, and what differs
        from one microbatch to the next, such as a first one that finds cold caches, for its share.

        A cost is the time that the rank was busy with an action: taking in a message that is there
        counts, and turning to the next action; waiting does not. ``send`` is that of handing a
        message over. The latency of a link is that of the messages that somebody waited for: from
        the end of the send to the moment when its receiver had it, less the time to take it in. A
        kind that the schedule does not have costs what the others tell: B = I + W, and
        I = W = B / 2.

        Args:
            skip: how many steps at the beginning to leave out, if there are more.
        """
        steps = self.steps[skip:] or self.steps
        taking = self._taking(steps)
        links = self._latencies(steps, taking)
        means: dict[tuple[Kind, int], list[float]] = defaultdict(list)
        for step in steps:
            for what, times in _busy(step, taking).items():
                means[what].append(fmean(times))
        return _table(self.schedule, means, _sizes(steps), links)

    def busy(self, *, skip: int = 1) -> dict[tuple[Kind, int], list[float]]:
        """How long ranks were busy with each kind of action of each stage, as ``costs`` counts it.
        An overlap that ran as one belongs to stage -1.

        Args:
            skip: how many steps at the beginning to leave out, if there are more.
        """
        steps = self.steps[skip:] or self.steps
        taking = self._taking(steps)
        found: dict[tuple[Kind, int], list[float]] = defaultdict(list)
        for step in steps:
            for what, times in _busy(step, taking).items():
                found[what] += times
        return dict(found)

    def timeline(self, step: int = -1) -> Timeline:
        """What one step looked like, from 0 on. A message is shown from its send until it was
        there, or until its receiver asked for it if that is not known better."""
        found = self.steps[step]
        origin, _ = _extent(found)
        taken = dict(_receptions(self.schedule, found))
        transfers = []
        for sent in chain.from_iterable(found):
            if sent.action.kind in SENDS:
                user = taken.get(sent.action)
                end = sent.end if user is None else max(sent.end, user.ready)
                times = sent.start - origin, end - origin
                transfers.append(Transfer(sent.action, self._edge(sent), *times, sent.size))
        slots = tuple(
            tuple(Slot(s.action, s.ready - origin, s.end - origin) for s in rank) for rank in found
        )
        return Timeline(slots, tuple(transfers))

    def _taking(self, steps: Sequence[Step]) -> dict[tuple[Kind, int], float]:
        """How long it takes to take in a message that is there: medians, by what uses it. What
        always had to wait takes as long as the others do."""
        delays = self._latencies(steps, {})
        found: dict[tuple[Kind, int], list[float]] = defaultdict(list)
        for sent, user in self._messages(steps):
            there = sent.end + delays.get(self._edge(sent), 0.0) <= user.start
            found[_what(user)] += [user.ready - user.start] if there else []
        middle = median([median(times) for times in found.values() if times] or [0.0])
        return {what: median(times or [middle]) for what, times in found.items()}

    def _latencies(
        self, steps: Sequence[Step], taking: Mapping[tuple[Kind, int], float]
    ) -> dict[Edge, float]:
        """How long messages took that were waited for: medians, by link."""
        found = defaultdict(list)
        for sent, user in self._messages(steps):
            if user.start < sent.end < user.ready:
                found[self._edge(sent)].append(user.ready - sent.end - taking.get(_what(user), 0.0))
        return {edge: max(0.0, median(delays)) for edge, delays in found.items()}

    def _edge(self, sent: Sample) -> Edge:
        ranks, (stage, kind, _, _) = self.schedule.placement.ranks, sent.action
        return ranks[stage], ranks[stage + KINDS[kind].stage_step]

    def _messages(self, steps: Sequence[Step]) -> Iterator[tuple[Sample, Sample]]:
        """The send of each message, and what used it."""
        for step in steps:
            sends = {s.action: s for rank in step for s in rank if s.action.kind in SENDS}
            for action, user in _receptions(self.schedule, step):
                if action in sends:
                    yield sends[action], user


def _sizes(steps: Sequence[Step]) -> dict[int, int]:
    """The bytes of each stage's input, as far as it was sent."""
    found = {}
    for sample in chain.from_iterable(rank for step in steps for rank in step):
        stage, kind, _, _ = sample.action
        if kind in SENDS:
            found[max(stage, stage + KINDS[kind].stage_step)] = sample.size
    return found


def _busy(
    step: Step, taking: Mapping[tuple[Kind, int], float]
) -> dict[tuple[Kind, int], list[float]]:
    """How long a step's actions kept their ranks busy, by kind and stage."""
    found = defaultdict(list)
    for sample in chain.from_iterable(step):
        what = _what(sample)
        found[what].append(sample.end - sample.ready + taking.get(what, 0.0) + sample.after)
    return found


def _what(sample: Sample) -> tuple[Kind, int]:
    return sample.action.kind, sample.action.stage


def _extent(step: Step) -> tuple[float, float]:
    """When the first rank began to work, and when the last one was done."""
    return (
        min(sample.ready for rank in step for sample in rank),
        max(sample.end for rank in step for sample in rank),
    )


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
    links: Mapping[Edge, float],
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
    begin, end = _extent(step)
    return tuple(
        _spent([s._replace(start=max(s.start, begin)) for s in rank], begin, end) for rank in step
    )


def _spent(rank: Sequence[Sample], begin: float, end: float) -> Spent:
    def total(times: Iterable[float]) -> float:
        return sum(times)

    compute = total(s.end - s.ready for s in rank if KINDS[s.action.kind].group is Group.COMPUTE)
    sending = total(s.end - s.start for s in rank if s.action.kind in SENDS)
    receiving = total(s.ready - s.start for s in rank if s.action.kind not in SENDS)
    first, last = min(s.start for s in rank), max(s.end for s in rank)
    overhead = last - first - compute - sending - receiving
    return Spent(compute, receiving, sending, overhead, (end - begin) - (last - first))
