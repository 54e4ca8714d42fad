"""What the search varies: due dates, by a base and how much is added to it, and rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import inf
from random import Random
from typing import Any, NamedTuple

from fullbore.ir import Kind
from fullbore.plan.instance import Instance
from fullbore.schedules.dispatcher import Rules

# Of the period, between two due dates.
_GRID = (0.001 / 6, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 1.0)
_PATIENCE = (0.0, 0.3, 0.6, 0.9)
_FILL = (0.0001, 0.25, 0.5, 0.75, 1.0)
_SLACKS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, inf)  # in periods


class Point(NamedTuple):
    """Due dates and rules.

    Attributes:
        base: when each F and I is due, by kind, stage and microbatch: what ``regular`` gives, or
            when they start in a schedule that is known.
        steps: how much later, from F of stage 0 on to that of stage 1 and so on to stage S-1, to I
            of stage S-1, and back to I of stage 0: 2 S - 1 times. Each also counts for what comes
            after it.
        rules: how ranks choose. Their ``period`` is what the base is multiplied by.
    """

    base: Any
    steps: tuple[float, ...]
    rules: Rules

    def shift(self) -> list[float]:
        """How much later than in the base each is due: F by stage, then I by stage."""
        dates = [*accumulate(self.steps, initial=0.0)]
        half = len(dates) // 2
        return dates[:half] + dates[: half - 1 : -1]


class Space:
    """The points of an instance.

    Args:
        of: the instance.
        random: where chance comes from. Only ``random()`` is used, which is the same everywhere.
    """

    def __init__(self, of: Instance, random: Random | None = None) -> None:
        self._of, self._random = of, random or Random(0)
        self.period = max(of.work) / of.num_microbatches or 1.0
        placement = of.placement
        local = [placement.stages_of(rank).index(s) for s, rank in enumerate(placement.ranks)]
        # Steps from stages that are alike: the same pass of a microbatch over the ranks.
        down = [(Kind.F, index) for index in local[:-1]]
        up = [(Kind.I, index) for index in local[:0:-1]]
        groups = [*down, (Kind.W, 0), *up]
        self._members = [
            [place for place, group in enumerate(groups) if group == name]
            for name in dict.fromkeys(groups)
        ]
        self.still = (0.0,) * len(groups)

    @property
    def _natural(self) -> list[float]:
        """The steps of one microbatch alone."""
        of = self._of
        down = [f + hop for f, hop in zip(of.F[:-1], of.down, strict=False)]
        up = [i + hop for i, hop in zip(of.I[1:], of.up, strict=False)]
        return [*down, of.F[-1], *reversed(up)]

    def regular(self) -> list[float]:
        """The base in which every microbatch passes as fast as it would alone, and a period later
        than the one before."""
        dates = Point(None, tuple(self._natural), Rules(period=1.0)).shift()
        later = [k * self.period for k in range(self._of.num_microbatches)]
        return [date + more for date in dates for more in later]

    def rules(self) -> Rules:
        """Some rules, from a grid."""
        return Rules(
            period=1.0,
            patience=_PATIENCE[self._below(len(_PATIENCE))],
            fill=_FILL[self._below(len(_FILL))],
            slack=_SLACKS[self._below(len(_SLACKS))] * self.period,
        )

    def paces(self) -> tuple[float, ...]:
        """Steps over the regular base that give each pass over the ranks a pace of its own, from a
        grid."""
        natural = self._natural
        steps = [0.0] * len(natural)
        for group in self._members:
            pick = self._below(len(_GRID) + 1)
            if pick < len(_GRID) and (len(group) > 1 or len(natural) < 4):
                for place in group:
                    steps[place] = _GRID[pick] * self.period - natural[place]
        return tuple(steps)

    def neighbour(self, point: Point) -> Point:
        """A point nearby."""
        chance = self._random.random()
        if chance < 0.16:
            return point._replace(rules=self._other_rules(point.rules))
        steps = list(point.steps)
        if chance < 0.3:
            self._add(steps, self._members[self._below(len(self._members))], 0.3)
        elif chance < 0.45:
            first = self._below(len(steps))
            last = first + 1 + self._below(len(steps) // 2 + 1)
            self._add(steps, range(first, min(len(steps), last)), 0.3)
        elif chance < 0.6:
            amount = self._random.random() * 0.5 * self.period
            steps[self._below(len(steps))] -= amount
            steps[self._below(len(steps))] += amount
        else:
            for _ in range(1 + self._below(3)):
                place = self._below(len(steps))
                self._add(steps, [place], 0.3 if self._random.random() < 0.5 else 1.5)
        return point._replace(steps=tuple(steps))

    def _add(self, steps: list[float], places: Sequence[int], width: float) -> None:
        """Take the same time longer or shorter at some places."""
        more = (self._random.random() - 0.5) * width * self.period
        for place in places:
            steps[place] += more

    def _other_rules(self, rules: Rules) -> Rules:
        choice, amount = self._below(4), self._random.random()
        if choice == 0:
            return replace(rules, fill=_FILL[self._below(len(_FILL))])
        if choice == 1:
            return replace(rules, patience=0.0 if amount < 0.3 else (amount - 0.3) / 0.7)
        if choice == 2 and rules.slack < inf and amount < 0.7:
            slack = max(0.0, rules.slack + (amount - 0.35) * 2 * self.period)
            return replace(rules, slack=slack)
        if choice == 2:
            return replace(rules, slack=_SLACKS[self._below(len(_SLACKS))] * self.period)
        period = rules.period + (amount - 0.5) * 0.1
        return replace(rules, period=min(max(period, 0.9), 1.5))

    def _below(self, limit: int) -> int:
        return int(self._random.random() * limit)


def stretched(dates: Sequence[float], *, rows: int, microbatches: int, size: int) -> list[float]:
    """Dates for more microbatches: the second round of ``size`` of them is repeated.

    What the rounds before and after it do is kept, so that a schedule that repeats itself every
    ``size`` microbatches gives that of more microbatches (as in section 3 of arXiv 2405.15362).

    Args:
        dates: by row and microbatch.
        rows: how many rows there are.
        microbatches: how many there shall be, ``size`` or a multiple of it more than there are.
        size: of a round; there are at least two of them.
    """
    few = len(dates) // rows
    rounds = (microbatches - few) // size
    given = [[float(date) for date in dates[row * few : (row + 1) * few]] for row in range(rows)]
    later = sum(row[2 * size - 1] - row[size - 1] for row in given) / rows
    found: list[float] = []
    for row in given:
        found += row[:size]
        for number in range(rounds):
            found += [date + number * later for date in row[size : 2 * size]]
        found += [date + rounds * later for date in row[size:]]
    return found
