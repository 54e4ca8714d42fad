"""The search on one placement: what the families offer, and what annealing makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from operator import itemgetter

from fullbore.errors import ParameterError
from fullbore.ir import Placement, Schedule
from fullbore.passes import MergeBackward
from fullbore.plan.anneal import Annealer
from fullbore.plan.bounds import bounds
from fullbore.plan.candidate import Candidate, judge
from fullbore.plan.instance import Instance, make_instance
from fullbore.plan.loops import Evaluator
from fullbore.plan.one_by_one import one_by_one
from fullbore.plan.points import stretched
from fullbore.schedules import FAMILIES, Family
from fullbore.schedules.costs import stage_costs
from fullbore.schedules.dispatch import NEVER
from fullbore.schedules.dispatcher import order_of
from fullbore.sim import Costs

_MET = 1 + 1e-6  # a bound is met up to rounding
_QUICK = 8_000  # actions that take no time to build and judge
_ROUNDS = 3  # of P microbatches: as many as show how a family goes on
_TIGHTER = 8  # times that memory is taken away at once for what is on its way
_LONG = 8  # rounds; from here on due dates are sought with fewer microbatches


class Placed:
    """Candidates on one placement.

    Args:
        placement: which rank holds which stage.
        num_microbatches: M.
        costs: what things cost.
        memory: what a rank may hold in all, in bytes; None: any amount.
        by_span: whether the span counts, instead of the makespan.
        seed: where chance begins.
        compiled: as of ``compiled.loops``.

    Raises:
        ParameterError: the costs do not fit the placement, or nothing fits the memory.
    """

    def __init__(
        self,
        placement: Placement,
        num_microbatches: int,
        *,
        costs: Costs,
        memory: float | None,
        by_span: bool,
        seed: int,
        compiled: bool | None,
    ) -> None:
        self.of = make_instance(placement, num_microbatches, costs=costs, memory=memory)
        self.memory, self._costs, self._by_span = memory, costs, by_span
        self._seed, self._compiled = seed, compiled
        self._objective = "span" if by_span else "makespan"
        self.bound = bounds(self.of).of(self._objective)
        table = costs.table(placement)
        # What decides whether a schedule fits beside the order: messages on their way.
        self.has_messages = any(table.message_bytes)
        self._is_merged = any(map(lambda b, i, w: b < i + w, table.B, table.I, table.W))
        self.families: list[Candidate] = []
        self.planned: Candidate | None = None
        self._waiting: list[Family] = []
        self._offered: Family | None = None  # whose order the search begins with
        self._bases: list[list[float]] = []
        self._searched = self.of if self.quick else _cut(self.of, _LONG)
        self._is_whole = self._searched is self.of
        self._least = self.bound if self._is_whole else bounds(self._searched).of(self._objective)
        self._begin_search(self.of.capacity)

    def _begin_search(self, capacity: tuple[float, ...]) -> None:
        """Begin anew with so much memory."""
        self._searched = replace(self._searched, capacity=capacity)
        self._judged = inf  # the length of the last order that was judged
        self.annealer = Annealer(
            self._searched,
            self._seed,
            target=self._least * _MET,
            bases=self._bases,
            by_span=self._by_span,
            compiled=self._compiled,
        )

    @property
    def actions(self) -> int:
        """How many a schedule has: what judging it costs."""
        return 3 * self.of.placement.num_stages * self.of.num_microbatches

    @property
    def quick(self) -> bool:
        """Whether building and judging a schedule takes next to no time."""
        return self.actions < _QUICK

    @property
    def length(self) -> float:
        """The shortest length so far, also of what is not judged yet; ``inf`` if there is none."""
        scale = self.bound / self._least if self._least else 1.0
        return min([self.annealer.length * scale, *(found.length for found in self.candidates)])

    @property
    def candidates(self) -> list[Candidate]:
        """All that fit and are judged."""
        return [*([self.planned] if self.planned else []), *self.families]

    @property
    def done(self) -> bool:
        """Whether the bound is met, or the search has nothing left to win."""
        return self.length <= self.bound * _MET or self.annealer.done

    def begin(self) -> None:
        """Try the families that have this placement, large ones with few microbatches."""
        few = self._searched if self.quick else _cut(self._searched, _ROUNDS)
        evaluate = Evaluator(few, by_span=self._by_span, compiled=self._compiled)
        fitting: list[tuple[float, Family]] = []
        for family in FAMILIES.values():
            schedule = self._build(family, few)
            if schedule is None:
                continue
            order = order_of(schedule)
            self._bases.append(_stretched(evaluate.starts(order), few, self._searched))
            self.annealer.add(self._bases[-1])
            length = evaluate.length(order)
            if length < NEVER:
                fitting.append((length, family))
        self._waiting = [family for _, family in sorted(fitting, key=itemgetter(0))]
        for family in self._waiting[:1]:
            self._offered = family
            schedule = self._build(family, self._searched)
            self._judged = self.annealer.offer(order_of(schedule)) if schedule else inf
        if not fitting:
            self.annealer.begin()
        while self.quick and self.judge_family():
            pass
        if self.quick or self.has_messages:
            self.settle()

    def level(self, number: int) -> Iterator[float]:
        """One level of annealing; gives the part that is over. ``settle`` takes its result."""
        yield from self.annealer.level(number)

    def judge_family(self) -> bool:
        """Judge the most promising family that has not been; whether there was one."""
        if not self._waiting:
            return False
        family = self._waiting.pop(0)
        schedule = self._build(family, self.of)
        assert schedule is not None
        candidate, over = self._judge(schedule)
        self.families += [] if any(over) else [candidate]
        if any(over) and family is self._offered:
            self._judged = inf  # it does not count, so that the search has to be settled
        return True

    def settle(self) -> None:
        """Judge the best order so far, or a family if that is the best. Where what is on its way
        between ranks makes it overrun the memory, begin anew with as much less. Where nothing else
        fits, one microbatch at a time may."""
        for _ in range(_TIGHTER):
            plain = self._found()
            if plain is None or self._settle(plain):
                break
            self.annealer.begin()
            if self.candidates and not self.quick:
                break
        # With fewer microbatches they cannot be compared.
        needed = not self._is_whole and not self.families
        while (needed or not self.candidates) and self.judge_family():
            needed = False
        if not self.candidates:
            candidate, over = self._judge(one_by_one(self.of.placement, self.of.num_microbatches))
            self.planned = None if any(over) else candidate

    def _settle(self, plain: Schedule) -> bool:
        """Judge an order; False if it is not kept, and the search begins anew with less memory."""
        schedules = [plain, *([MergeBackward().apply(plain)] if self._is_merged else [])]
        judged = [self._judge(schedule) for schedule in schedules]
        fitting = [candidate for candidate, over in judged if not any(over)]
        best = min(fitting, key=lambda candidate: candidate.length, default=None)
        if best is None:
            return not self._tighten(judged[0][1])
        if self.planned is None or best.length < self.planned.length:
            self.planned = best
        return True

    def _tighten(self, over: tuple[float, ...]) -> bool:
        """Begin anew with so much less memory, but with room for a microbatch of each stage;
        whether there is any to take away."""
        least = self.of.placement.sum_by_rank(self.of.held)
        had = self._searched.capacity
        left = tuple(
            max(room - more, one) for room, more, one in zip(had, over, least, strict=True)
        )
        if left == had:
            return False
        self._begin_search(left)
        return True

    def _found(self) -> Schedule | None:
        """The best order that has not been judged yet."""
        search = self.annealer
        if search.order is None or search.length >= min(self._judged, NEVER):
            return None
        self._judged = search.length
        if self._is_whole:
            return search.evaluate.schedule(search.order)
        # What is a little worse with few microbatches may go on better.
        whole = replace(self.of, capacity=self._searched.capacity)
        evaluate = Evaluator(whole, by_span=self._by_span, compiled=self._compiled)
        bases = (_stretched(point.base, self._searched, whole) for point in search.records)
        points = [
            point._replace(base=evaluate.numbers(base))
            for point, base in zip(search.records, bases, strict=True)
        ]
        length, best = min((evaluate(point), -n) for n, point in enumerate(points))
        if length >= NEVER:
            return None
        evaluate(points[-best])
        return evaluate.schedule(evaluate.order)

    def _judge(self, schedule: Schedule) -> tuple[Candidate, tuple[float, ...]]:
        return judge(
            schedule,
            self.of.capacity,
            costs=self._costs,
            bound=self.bound,
            by_span=self._by_span,
        )

    def _build(self, family: Family, of: Instance) -> Schedule | None:
        """The family's schedule on this placement, if it has one."""
        placement = of.placement
        if family.name == "forward_only":
            return None
        try:
            where = family.place(
                placement.num_ranks, placement.num_stages // placement.num_ranks, placement
            )
        except ParameterError:
            return None
        options = {}
        if family.uses_costs:
            options["costs"] = stage_costs(placement, self._costs, self.memory)
        return replace(family.build(where, of.num_microbatches, **options), name=family.name)


def _cut(of: Instance, rounds: int) -> Instance:
    """With so many rounds of P microbatches, and what was left over by whole rounds."""
    size, m = of.placement.num_ranks, of.num_microbatches
    return of if m < (rounds + 1) * size else replace(of, num_microbatches=rounds * size + m % size)


def _stretched(dates: Sequence[float], few: Instance, many: Instance) -> list[float]:
    """Dates of few microbatches, for many."""
    if few.num_microbatches == many.num_microbatches:
        return [*dates]
    placement = many.placement
    return stretched(
        dates,
        rows=2 * placement.num_stages,
        microbatches=many.num_microbatches,
        size=placement.num_ranks,
    )
