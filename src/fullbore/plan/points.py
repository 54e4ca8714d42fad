"""What the search varies: due dates, independent of the number of microbatches, and rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import inf
from random import Random
from typing import NamedTuple

from fullbore.ir import Kind
from fullbore.plan.instance import Instance
from fullbore.schedules.dispatcher import Rules
from fullbore.sim import Timeline

_LEAST = 1e-6  # of the period, between two due dates
_FACTORS = (0.67, 0.8, 0.9, 1.1, 1.25, 1.5)
_GRID = (0.001 / 6, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 1.0)
_RULES = ((0.0, 1.0), (0.0, 0.0001), (0.8, 1.0), (0.3, 0.5))  # patience, fill
_SLACKS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)  # in periods


class Point(NamedTuple):
    """Due dates and rules.

    Attributes:
        steps: from the due date of F of stage 0 to that of stage 1 and so on to stage S-1, to I of
            stage S-1, and back to I of stage 0: 2 S - 1 times.
        rules: how ranks choose.
    """

    steps: tuple[float, ...]
    rules: Rules

    def due(self) -> list[float]:
        """The due dates of microbatch 0: F by stage, then I by stage."""
        dates = [0.0]
        for step in self.steps:
            dates.append(dates[-1] + step)
        half = len(dates) // 2
        return dates[:half] + dates[: half - 1 : -1]


class Space:
    """The points of an instance.

    Args:
        of: the instance.
        random: where chance comes from. Only ``random()`` is used, which is the same everywhere.
    """

    def __init__(self, of: Instance, random: Random) -> None:
        self._of, self._random = of, random
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
        self._tight = any(
            capacity < 0.85 * placement.num_ranks * sum(of.held[s] for s in placement.stages_of(r))
            for r, capacity in enumerate(of.capacity)
        )

    def natural(self) -> tuple[float, ...]:
        """As fast as one microbatch alone can pass."""
        of = self._of
        down = [f + hop for f, hop in zip(of.F[:-1], of.down, strict=False)]
        up = [i + hop for i, hop in zip(of.I[1:], of.up, strict=False)]
        return tuple(self._least(step) for step in (*down, of.F[-1], *reversed(up)))

    def followed(self, timeline: Timeline) -> tuple[float, ...]:
        """As a microbatch in the middle of a timeline passes."""
        middle, stages = self._of.num_microbatches // 2, self._of.placement.num_stages
        starts = {
            (leaf.action.kind is Kind.F, leaf.action.stage): leaf.start
            for slots in timeline.ranks
            for slot in slots
            for leaf in slot.leaves
            if leaf.action.microbatch == middle and leaf.action.kind is not Kind.W
        }
        times = [starts[True, s] for s in range(stages)]
        times += [starts[False, s] for s in reversed(range(stages))]
        return tuple(self._least(b - a) for a, b in pairwise(times))

    def rules(self) -> Iterator[Rules]:
        """What to try for every start."""
        for slack in (*_SLACKS, inf) if self._tight else (inf,):
            for patience, fill in _RULES:
                yield Rules(
                    period=self.period, patience=patience, fill=fill, slack=slack * self.period
                )

    def starts(self, count: int) -> Iterator[tuple[float, ...]]:
        """Where each pass over the ranks has a pace of its own, from a grid."""
        natural = self.natural()
        members = [group for group in self._members if len(group) > 1 or len(natural) < 4]
        for _ in range(count):
            steps = list(natural)
            for group in members:
                pick = self._below(len(_GRID) + 1)
                if pick < len(_GRID):
                    for place in group:
                        steps[place] = self._least(_GRID[pick] * self.period)
            yield tuple(steps)

    def neighbour(self, point: Point) -> Point:
        """A point nearby."""
        chance = self._random.random()
        if chance < 0.16:
            return point._replace(rules=self._other_rules(point.rules))
        steps = list(point.steps)
        if chance < 0.3:
            self._pace(steps)
        elif chance < 0.45:
            self._stretch(steps)
        elif chance < 0.6:
            self._shift(steps)
        else:
            for _ in range(1 + self._below(3)):
                place = self._below(len(steps))
                width = 0.3 if self._random.random() < 0.5 else 1.5
                steps[place] += (self._random.random() - 0.5) * width * self.period
        return point._replace(steps=tuple(map(self._least, steps)))

    def _other_rules(self, rules: Rules) -> Rules:
        choice, amount = self._below(4 if self._tight else 2), self._random.random()
        if choice == 0:
            return replace(rules, fill=(0.0001, 0.5, 1.0)[self._below(3)])
        if choice == 1:
            return replace(rules, patience=0.0 if amount < 0.3 else (amount - 0.3) / 0.7)
        if choice == 2 and rules.slack < inf and amount < 0.7:
            slack = max(0.0, rules.slack + (amount - 0.35) * 2 * self.period)
            return replace(rules, slack=slack)
        if choice == 2:
            return replace(rules, slack=_SLACKS[self._below(len(_SLACKS))] * self.period)
        period = rules.period + (amount - 0.5) * 0.1 * self.period
        return replace(rules, period=min(max(period, 0.9 * self.period), 1.5 * self.period))

    def _pace(self, steps: list[float]) -> None:
        """Another pace for one pass over the ranks."""
        group = self._members[self._below(len(self._members))]
        change = (self._random.random() - 0.5) * 0.3 * self.period
        for place in group:
            steps[place] += change

    def _stretch(self, steps: list[float]) -> None:
        factor = _FACTORS[self._below(len(_FACTORS))]
        first = self._below(len(steps))
        for place in range(first, min(len(steps), first + 1 + self._below(len(steps) // 2 + 1))):
            steps[place] *= factor

    def _shift(self, steps: list[float]) -> None:
        source, target = self._below(len(steps)), self._below(len(steps))
        amount = min(self._random.random() * 0.5 * self.period, 0.95 * steps[source])
        steps[source] -= amount
        steps[target] += amount

    def _below(self, limit: int) -> int:
        return int(self._random.random() * limit)

    def _least(self, step: float) -> float:
        return max(step, _LEAST * self.period)
