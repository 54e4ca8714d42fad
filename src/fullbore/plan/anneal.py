"""The search on one placement: annealed due dates, then moves within the order they give."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from operator import itemgetter
from random import Random

from fullbore.plan.instance import Instance
from fullbore.plan.loops import Evaluator
from fullbore.plan.points import Point, Space
from fullbore.sim import Timeline

# It counts actions put in order, so that a level takes about the same time at every size.
BUDGET = 4_000_000
_FEWEST, _MOST = 40, 20_000  # evaluations of the first level
_SWAPPED = (
    8_000  # orders of more actions gain little by moves that each cost as much as a new order
)
_RECORDS = 8  # how many of the best points are kept
_WARM = 0.003  # how much worse a step may be at first, as a part of the best


class Annealer:
    """Looks for a short order on one placement, level by level; each costs twice the one before.

    Args:
        of: the instance.
        seed: where chance begins.
        target: a length at which there is nothing more to win.
        by_span, compiled: as of ``Evaluator``.
        budget: how many actions the first level puts in order.
    """

    def __init__(
        self,
        of: Instance,
        seed: int,
        *,
        target: float,
        by_span: bool = False,
        compiled: bool | None = None,
        budget: int = BUDGET,
    ) -> None:
        self._budget = budget
        self._evaluate = Evaluator(of, by_span=by_span, compiled=compiled)
        self._random = Random(seed)
        self._space = Space(of, self._random)
        self._target = target
        self._seeds: list[tuple[float, ...]] = []
        self._others: list[tuple[float, Point]] = []
        self.length = float("inf")
        self.order: list[int] | None = None
        self.records: deque[Point] = deque(maxlen=_RECORDS)
        self.evaluations = 0

    @property
    def done(self) -> bool:
        """Whether there is nothing more to win."""
        return self.length <= self._target

    @property
    def evaluator(self) -> Evaluator:
        """What this search evaluates orders with."""
        return self._evaluate

    def begin_from(self, timeline: Timeline) -> None:
        """Also begin where a timeline is."""
        self._seeds.append(self._space.followed(timeline))

    def begin(self) -> None:
        """Find some order, at once."""
        for rule in self._space.rules():
            self._try(Point(self._space.natural(), rule))

    def level(self, number: int) -> Iterator[float]:
        """One level, from 1 on; gives the part of it that is over, after every piece of work that
        should not be interrupted."""
        count = min(max(_FEWEST, self._budget // self._evaluate.actions), _MOST) << (number - 1)
        first = not self._others  # of this search, which may have begun anew at a later level
        if first:
            for part in self._explore(count // 2):
                yield 0.5 * part
            count -= count // 2
        swapped = count // 2 if self._evaluate.actions <= _SWAPPED and not first else 0
        begun = 0.5 if first else 0.0
        share = (1 - begun) * (count - swapped) / count
        # A second chain, from another start each time: the best one may lead nowhere.
        for chain in range(2):
            for part in self._anneal((count - swapped) // 2, chain * number):
                yield begun + share * (chain + part) / 2
        for part in self._swap(swapped):
            yield begun + share + (1 - begun - share) * part

    def _explore(self, count: int) -> Iterator[float]:
        rules = [*self._space.rules()]
        known = [self._space.natural(), *self._seeds]
        starts = [*known, *self._space.starts(max(0, count // len(rules) - len(known)))]
        for number, steps in enumerate(starts):
            points = [Point(steps, rule) for rule in rules]
            self._others.append(
                min(zip(map(self._try, points), points, strict=True), key=itemgetter(0))
            )
            yield (number + 1) / len(starts)
            if self.done:
                return
        self._others.sort(key=itemgetter(0))

    def _anneal(self, count: int, rank: int) -> Iterator[float]:
        """From the best point if ``rank`` is 0, else from the start that came in at it."""
        if not self.records or rank >= len(self._others):
            return
        point = self._others[rank][1] if rank else self.records[-1]
        # Moves may have gone on from the order of the best point; its own length counts here.
        length = self._evaluate(point)
        self.evaluations += 1
        warm = _WARM * length
        for number in range(count):
            tolerance = warm * (1 - number / count) ** 2 * self._random.random() ** 2
            other = self._space.neighbour(point)
            found = self._try(other)
            if found <= length + tolerance:
                point, length = other, found
            yield (number + 1) / count
            if self.done:
                return

    def _try(self, point: Point) -> float:
        length = self._evaluate(point)
        self.evaluations += 1
        if length < self.length:
            self.length, self.order = length, self._evaluate.order
            self.records.append(point)
        return length

    def _swap(self, count: int) -> Iterator[float]:
        """Moves from the best order, and in every third piece from that of another start."""
        pieces = 12 if count else 0
        for piece in range(pieces):
            if self.order is None or self.done:
                return
            order = self.order
            if piece % 3 == 2 and piece // 3 < len(self._others):
                self._evaluate(self._others[piece // 3][1])
                self.evaluations += 1
                order = self._evaluate.order
            found, best = self._evaluate.swap(
                order,
                length=self.length,
                moves=count // pieces,
                tolerance=_WARM * self.length * (1 - piece / pieces) ** 2,
                seed=int(self._random.random() * 2**31),
            )
            self.evaluations += count // pieces
            if found < self.length:
                self.length, self.order = found, best
            yield (piece + 1) / pieces
