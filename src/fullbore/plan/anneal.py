"""The search on one placement: annealed due dates, then moves within the order they give."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from operator import itemgetter
from random import Random
from typing import Any

from fullbore.plan.instance import Instance
from fullbore.plan.loops import Evaluator
from fullbore.plan.points import Point, Space

# It counts actions put in order, so that a level takes about the same time at every size.
BUDGET = 4_000_000
_FEWEST, _MOST = 40, 20_000  # evaluations of the first level
_SWAPPED = 8_000  # orders of more actions gain little: each move costs as much as a new order
_RECORDS = 8  # how many of the best points are kept
_CHAINS, _CHAIN = 8, 400  # how many chains a level has at most, and how long they should be
_AGAIN = 20  # how many rules are tried on the best order's own starts
_WARM = 0.003  # how much worse a step may be at first, as a part of the best; a move, an action
_PIECES, _MOVES = 6, 4  # of moves; how many a level makes in place of one evaluation


class Annealer:
    """Looks for a short order on one placement, level by level; each costs twice the one before.

    Args:
        of: the instance.
        seed: where chance begins.
        target: a length at which there is nothing more to win.
        bases: when each F and I starts in known schedules, which may need more memory than there
            is.
        by_span, compiled: as of ``Evaluator``.
        budget: how many actions the first level puts in order.

    Attributes:
        evaluate: what it evaluates orders with.
        length, order: the best so far.
        records: the points that were the best when they were found, the last of them.
        evaluations: how many orders were tried.
    """

    def __init__(
        self,
        of: Instance,
        seed: int,
        *,
        target: float,
        bases: Sequence[Sequence[float]] = (),
        by_span: bool = False,
        compiled: bool | None = None,
        budget: int = BUDGET,
    ) -> None:
        self._budget = budget
        self.evaluate = Evaluator(of, by_span=by_span, compiled=compiled)
        self._random = Random(seed)
        self._space = Space(of, self._random)
        self._target = target
        self._bases: list[Any] = []
        for base in (self._space.regular(), *bases):
            self.add(base)
        self._others: list[tuple[float, Point]] = []
        self._turn = 0
        self._mean = sum(of.work) / self.evaluate.actions
        self.length = float("inf")
        self.order: list[int] | None = None
        self.records: deque[Point] = deque(maxlen=_RECORDS)
        self.evaluations = 0

    @property
    def done(self) -> bool:
        """Whether there is nothing more to win."""
        return self.length <= self._target

    def add(self, base: Sequence[float]) -> None:
        """Also begin from a base."""
        self._bases.append(self.evaluate.numbers([*base]))

    def offer(self, order: list[int]) -> float:
        """Also consider an order; its length."""
        length = self.evaluate.length(order)
        if length < self.length:
            self.length, self.order = length, order
        return length

    def begin(self, tries: int = 200) -> None:
        """Find some order, at once."""
        for _ in range(tries):
            self._try(Point(self._bases[0], self._space.still, self._space.rules()))
            if self.order is not None:
                return

    def level(self, number: int) -> Iterator[float]:
        """One level, from 1 on; gives the part of it that is over, after every piece of work that
        should not be interrupted."""
        actions = self.evaluate.actions
        count = min(max(_FEWEST, self._budget // actions), _MOST) << (number - 1)
        if not self._others:
            parts = [(count // 2, self._explore(count // 2)), (count // 2, self._go_on(count // 2))]
        else:
            # Chains from other starts as well: the best one may lead nowhere.
            swapped = count // 2 if actions <= _SWAPPED else 0
            chains = min(max(2, count // _CHAIN), _CHAINS)
            size = (count - swapped) // chains
            parts = [(size, self._start(size)) for _ in range(chains - 1)]
            parts += [(size, self._go_on(size)), (swapped, self._swap(swapped))]
        done = 0
        for size, part in parts:
            for inner in part:
                yield (done + inner * size) / count
            done += size

    def _explore(self, count: int) -> Iterator[float]:
        """Rules on all bases, and paces from a grid on the regular one."""
        space, bases = self._space, self._bases
        best: dict[int, tuple[float, Point]] = {}
        for number in range(count):
            place = number % (2 * len(bases))
            known = place < len(bases)
            base, steps = (bases[place], space.still) if known else (bases[0], space.paces())
            point = Point(base, steps, space.rules())
            key = place if known else len(bases) + number
            found = (self._try(point), point)
            best[key] = min(best.get(key, found), found, key=itemgetter(0))
            yield (number + 1) / count
            if self.done:
                return
        self._others = sorted(best.values(), key=itemgetter(0))

    def _start(self, count: int) -> Iterator[float]:
        """A chain from the next of the starts."""
        self._turn += 1
        length, point = self._others[self._turn % len(self._others)]
        yield from self._anneal(count, length, point)

    def _go_on(self, count: int) -> Iterator[float]:
        """A chain from the best. Moves, or a family, may have given its order: then its own starts
        are a base as well."""
        if self.order is None:
            return
        base, still = self.evaluate.starts(self.order), self._space.still
        points = [Point(base, still, self._space.rules()) for _ in range(_AGAIN)]
        points += [*self.records][-1:]
        found = ((self._try(point), point) for point in points)
        yield from self._anneal(count, *min(found, key=itemgetter(0)))

    def _anneal(self, count: int, length: float, point: Point) -> Iterator[float]:
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
        length = self.evaluate(point)
        self.evaluations += 1
        if length < self.length:
            self.length, self.order = length, self.evaluate.order
            self.records.append(point)
        return length

    def _swap(self, count: int) -> Iterator[float]:
        """Moves from the best order, and in every third piece from that of another start."""
        pieces = _PIECES if count else 0
        for piece in range(pieces):
            if self.order is None or self.done:
                return
            order = self.order
            if piece % 3 == 2 and piece // 3 < len(self._others):
                self.evaluate(self._others[piece // 3][1])
                self.evaluations += 1
                order = self.evaluate.order
            found, best = self.evaluate.swap(
                order,
                length=self.length,
                moves=_MOVES * count // pieces,
                tolerance=max(_WARM * self.length, self._mean) * (1 - piece / pieces),
                seed=int(self._random.random() * 2**31),
            )
            self.evaluations += _MOVES * count // pieces
            if found < self.length:
                self.length, self.order = found, best
            yield (piece + 1) / pieces
