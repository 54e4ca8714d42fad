"""The search on one placement: what the families offer, and what annealing makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from operator import itemgetter

from fullbore.errors import ParameterError
from fullbore.ir import Placement, Schedule
from fullbore.passes import MergeBackward
from fullbore.plan.anneal import Annealer
from fullbore.plan.bounds import bounds
from fullbore.plan.candidate import Candidate, excess, judge, most_held
from fullbore.plan.instance import Instance, make_instance
from fullbore.plan.loops import Evaluator
from fullbore.schedules import FAMILIES, Family
from fullbore.schedules.dispatch import NEVER
from fullbore.sim import Costs, Timeline, simulate

_MET = 1 + 1e-6  # a bound is met up to rounding
_LARGE = 40_000  # actions; from here on due dates are sought with fewer microbatches


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
        self._costs, self._by_span = costs, by_span
        self._seed, self._compiled = seed, compiled
        self.bound = bounds(self.of).of("span" if by_span else "makespan")
        self.families: list[Candidate] = []
        self.planned: Candidate | None = None
        self._begin_search(self.of.capacity)

    def _begin_search(self, capacity: tuple[float, ...]) -> None:
        """Begin anew with so much memory."""
        of = replace(self.of, capacity=capacity)
        self._whole: Evaluator | None = None
        self._judged = inf  # the length of the last order that was judged
        met = self.bound * _MET
        if 3 * of.placement.num_stages * of.num_microbatches > _LARGE:
            # Due dates found with fewer microbatches do for all of them; and cost less to find.
            self._whole = Evaluator(of, by_span=self._by_span, compiled=self._compiled)
            of = replace(of, num_microbatches=_few(of))
            met = bounds(of).of("span" if self._by_span else "makespan") * _MET
        self._searched = of
        self.annealer = Annealer(
            of, self._seed, target=met, by_span=self._by_span, compiled=self._compiled
        )

    @property
    def _ranks(self) -> range:
        return range(self.of.placement.num_ranks)

    @property
    def length(self) -> float:
        """That of the best candidate; ``inf`` if there is none."""
        return min((found.length for found in self.candidates), default=inf)

    @property
    def candidates(self) -> list[Candidate]:
        """All that fit."""
        return [*([self.planned] if self.planned else []), *self.families]

    @property
    def done(self) -> bool:
        """Whether the bound is met, or the search has nothing left to win."""
        return self.length <= self.bound * _MET or self.annealer.done

    def begin(self) -> None:
        """Try the families that have this placement and fit. Of large schedules only that is judged
        which does best with fewer microbatches."""
        table, placement = self._costs.table(self.of.placement), self.of.placement
        static = [sum(table.static_bytes[s] for s in placement.stages_of(r)) for r in self._ranks]
        found: list[tuple[float, Family, Timeline]] = []
        for family in FAMILIES.values():
            schedule = self._build(family, self._searched)
            if schedule is None:
                continue
            held = most_held(schedule, table)
            if any(map(excess, held, static, self.of.capacity)):
                continue
            timeline = simulate(schedule, self._costs)
            self.annealer.begin_from(timeline)
            length = timeline.span if self._by_span else timeline.makespan
            found.append((length, family, timeline))
        if self._whole is not None:
            found = sorted(found, key=itemgetter(0))[:1]
        for _, family, timeline in found:
            schedule = self._build(family, self.of)
            assert schedule is not None
            known = timeline if self._whole is None else None
            candidate, over = self._judge(schedule, known)
            self.families += [] if any(over) else [candidate]
        if not self.families:
            self.annealer.begin()
            self.settle()

    def level(self, number: int) -> Iterator[float]:
        """One level of annealing; gives the part that is over. ``settle`` takes its result."""
        yield from self.annealer.level(number)

    def settle(self) -> None:
        """Judge the best order so far. Where what is on its way between ranks makes it overrun the
        memory, begin anew with as much less."""
        plain = self._found()
        if plain is None:
            return
        merged = MergeBackward().apply(plain)
        schedules = [plain] if merged == plain else [plain, merged]
        judged = [self._judge(schedule) for schedule in schedules]
        fitting = [candidate for candidate, over in judged if not any(over)]
        best = min(fitting, key=lambda candidate: candidate.length, default=None)
        if best is None:
            over = judged[0][1]
            room = zip(self._searched.capacity, over, strict=True)
            self._begin_search(tuple(c - more for c, more in room))
        elif self.planned is None or best.length < self.planned.length:
            self.planned = best

    def _found(self) -> Schedule | None:
        """The best order that has not been judged yet."""
        search = self.annealer
        if search.order is None or search.length >= self._judged:
            return None
        self._judged = search.length
        if self._whole is None:
            return replace(search.evaluator.schedule(search.order), name="plan")
        # What is a little worse with few microbatches may go on better.
        length, best = min((self._whole(point), -n) for n, point in enumerate(search.records))
        if length >= NEVER:
            return None
        self._whole(search.records[-best])
        return replace(self._whole.schedule(self._whole.order), name="plan")

    def _judge(
        self, schedule: Schedule, timeline: Timeline | None = None
    ) -> tuple[Candidate, tuple[float, ...]]:
        return judge(
            schedule,
            self.of.capacity,
            costs=self._costs,
            bound=self.bound,
            by_span=self._by_span,
            timeline=timeline,
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
        return replace(family.build(where, of.num_microbatches), name=family.name)


def _few(of: Instance) -> int:
    """As many microbatches as show how a long step goes on."""
    return min(of.num_microbatches, 3 * of.placement.num_ranks)
