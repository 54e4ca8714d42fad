"""Programs as plain integers, and the machine that runs them.

To find out whether a schedule can run, all that counts is which facts an action waits for and
which it brings about, in which order. A *track* is a rank's program in these terms: the integer
``fact`` makes a fact hold, ``~fact`` waits until it holds. What a transport demands shows in the
tracks of the transfers alone, so one small machine serves all transport models:

* A receive announces that its rank has reached it (``READY``), waits until the message is sent
  (``SENT``), and then has it (``ARRIVED``).
* A ``rendezvous`` send offers its message (``SENT``) and waits for its receive (``READY``).
* A ``per_edge`` send waits until the message before it on the channel has been received, and then
  offers its own.
* A ``buffered`` send offers its message and goes on.

The halves of a batched pair announce and offer together before either waits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import chain, pairwise
from typing import NamedTuple

from fullbore.ir import KINDS, Action, Fact, Form, Group, Kind
from fullbore.ir.deps import Term, outcome, rule
from fullbore.verify.channels import Channels
from fullbore.verify.structure import Survey

_READY = {Kind.RECV_F: len(Fact), Kind.RECV_B: len(Fact) + 1}  # further planes of facts

Row = tuple[tuple[int, int], ...]
"""A track relative to an action's cell ``here``: each ``(sign, base)`` means ``sign*here+base``."""


class Wait(NamedTuple):
    """Where a rank stands for ever: at ``action``, which needs ``giver`` of rank ``on``."""

    step: int
    action: Action
    giver: Action
    on: int


class Tracks:
    """The tracks of all ranks under one transport model."""

    def __init__(self, survey: Survey, channels: Channels, model: str) -> None:
        schedule = survey.schedule
        self._programs, self._model = survey.programs, model
        self._microbatches = schedule.num_microbatches
        self._plane = schedule.num_stages * schedule.num_microbatches
        self._rows = self._all_rows(schedule.placement.ranks, schedule.form)
        self._tracks: list[list[int]] = []
        self._starts: list[list[int]] = []  # where on the track each step starts
        for program in survey.programs:
            self._append(program)
        if model == "per_edge":
            self._wait_for_the_one_before(channels)

    def blocked(self) -> dict[int, Wait]:
        """The ranks that cannot finish. Takes time linear in the number of actions.

        A fact that no action brings about is the business of other rules, and taken to hold.
        """
        if not _stuck(self._tracks, run(self._tracks, set())):
            return {}
        givers = {
            fact: (rank, place)
            for rank, track in enumerate(self._tracks)
            for place, fact in enumerate(track)
            if fact >= 0
        }
        given = {~need for track in self._tracks for need in track if need < 0} - givers.keys()
        reached = run(self._tracks, given)
        waits: dict[int, Wait] = {}
        for rank in _stuck(self._tracks, reached):
            fact = ~self._tracks[rank][reached[rank]]
            step, action = self._action(rank, reached[rank])
            on, place = givers[fact]
            leaves = self._action(on, place)[1].leaves
            giver = next((leaf for leaf in leaves if fact in self._alone(leaf)), leaves[0])
            waits[rank] = Wait(step, action, giver, on)
        return waits

    def _action(self, rank: int, place: int) -> tuple[int, Action]:
        step = bisect_right(self._starts[rank], place) - 1
        return step, self._programs[rank][step]

    def _append(self, program: Sequence[Action]) -> None:
        rows, microbatches = self._rows, self._microbatches
        track: list[int] = []
        starts: list[int] = []
        for action in program:
            stage, kind, microbatch, parts = action
            starts.append(len(track))
            if parts:
                track += self._together(action)
                continue
            here = stage * microbatches + microbatch
            for sign, base in rows[stage][kind]:
                track.append(sign * here + base)
        self._tracks.append(track)
        self._starts.append(starts)

    def _alone(self, leaf: Action) -> list[int]:
        here = leaf.stage * self._microbatches + leaf.microbatch
        return [sign * here + base for sign, base in self._rows[leaf.stage][leaf.kind]]

    def _together(self, action: Action) -> list[int]:
        if KINDS[action.kind].group is Group.COMPUTE:
            inner = [fact for part in action.parts for fact in self._alone(part)]
            gives = [fact for fact in inner if fact >= 0]
            return [need for need in inner if need < 0 and ~need not in gives] + gives
        receives = [self._alone(part) for part in action.parts if part.kind in _READY]
        sends = [self._alone(part) for part in action.parts if part.kind not in _READY]
        announced = [receive[:1] for receive in receives]
        return list(chain(*announced, *sends, *(receive[1:] for receive in receives)))

    def _all_rows(self, ranks: Sequence[int], form: Form) -> list[list[Row]]:
        @cache
        def rows(*, first: bool, last: bool, remote: tuple[bool, bool]) -> list[Row]:
            return [
                self._row(kind, rule(kind, first=first, last=last, remote=remote)) for kind in Kind
            ]

        crossings = [form is Form.LOWERED and a != b for a, b in pairwise(ranks)]
        sides = pairwise([False, *crossings, False])
        last = len(ranks) - 1
        return [rows(first=s == 0, last=s == last, remote=side) for s, side in enumerate(sides)]

    def _row(self, kind: Kind, terms: Sequence[Term]) -> Row:
        info, plane, microbatches = KINDS[kind], self._plane, self._microbatches
        if not info.has_microbatch:
            return ()  # sharding has rules of its own, a fused action is its parts
        # That W comes after its I is a rule of its own, too.
        terms = () if kind is Kind.W else terms
        needs = [(-1, ~(fact * plane + away * microbatches)) for fact, away in terms]
        gives = [(1, fact * plane + away * microbatches) for fact, away in outcome(kind)]
        if kind in _READY:
            return ((1, _READY[kind] * plane), *needs, *gives)
        if info.mate is None or self._model == "buffered":
            return (*needs, *gives)
        received = (-1, ~(_READY[info.mate] * plane + info.stage_step * microbatches))
        if self._model == "per_edge":
            return (*needs, received, *gives)
        return (*needs, *gives, received)

    def _wait_for_the_one_before(self, channels: Channels) -> None:
        """Let each send wait for the receive before its own instead; the first for nothing."""
        nothing = (len(Fact) + len(_READY)) * self._plane  # a fact that nobody waits for
        before: dict[int, int] = {}
        for transfers in channels.values():
            received = [
                _READY[kind] * self._plane + stage * self._microbatches + microbatch
                for _, _, stage, kind, microbatch in transfers
            ]
            if received:
                before[~received[0]] = nothing
            before |= {~later: ~earlier for earlier, later in pairwise(received)}
        self._tracks = [[before.get(fact, fact) for fact in track] for track in self._tracks]


def run(tracks: Sequence[Sequence[int]], holds: set[int]) -> list[int]:
    """How far each track gets, all running together, from the facts that hold at first.

    Whoever waits is woken by the fact it waits for, so the work is linear in the tracks' length.
    Nothing that one track does can stop another, hence every order of running them ends alike.
    """
    places = [0] * len(tracks)
    waiting: dict[int, list[int]] = {}
    ready = list(range(len(tracks)))
    while ready:
        rank = ready.pop()
        track = tracks[rank]
        for place in range(places[rank], len(track)):
            fact = track[place]
            if fact >= 0:
                holds.add(fact)
                if fact in waiting:
                    ready += waiting.pop(fact)
            elif ~fact not in holds:
                waiting.setdefault(~fact, []).append(rank)
                places[rank] = place
                break
        else:
            places[rank] = len(track)
    return places


def _stuck(tracks: Sequence[Sequence[int]], places: Sequence[int]) -> list[int]:
    return [rank for rank, track in enumerate(tracks) if places[rank] < len(track)]
