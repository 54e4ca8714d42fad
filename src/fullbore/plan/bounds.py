"""Lower bounds: what no schedule can beat, whatever its order.

Microbatches are alike, so nothing is lost if each kind of work of a stage takes them in order; the
k-th F, I or W of a stage is then microbatch k's. Five arguments follow, of which the best holds:

* **work**: a rank has to do its work, and cannot begin before the first microbatch reaches it.
* **window**: before a rank's first backward only as many forwards fit as memory can hold, and after
  its last forward only the backwards of what memory holds then. The rest of these windows is idle.
* **area**: an activation is held at least for the way down and back up. All of them together need
  memory times time, of which a rank has its capacity times the span.
* **chain**: the longest path where F of microbatch k + K has to wait for I of microbatch k, if K of
  a stage's activations fill its rank.
* **machine**: each rank as one machine whose jobs may be interrupted, with the earliest starts and
  the least that follows from the chain (Jackson's rule).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from math import floor, inf

from fullbore.plan.chains import Chains, chains
from fullbore.plan.instance import Instance

_EXACT = 1 + 1e-9  # a capacity is often a multiple of what is held, give or take a rounding


@dataclass(frozen=True, slots=True)
class Bounds:
    """What no schedule of an instance can beat, by argument. Times are in the unit of the costs."""

    makespan_by: dict[str, float]
    span_by: dict[str, float]

    @property
    def makespan(self) -> float:
        """The largest bound on the makespan."""
        return max(self.makespan_by.values())

    @property
    def span(self) -> float:
        """The largest bound on the span."""
        return max(self.span_by.values())

    def of(self, objective: str) -> float:
        """That of ``"makespan"`` or ``"span"``."""
        return self.span if objective == "span" else self.makespan


def bounds(instance: Instance) -> Bounds:
    """The bounds of an instance, in time linear in the number of actions but for sorting.

    They hold for the simulator's timelines under its memory model. ``span`` is the largest over the
    ranks, as there.
    """
    ranks = [_Rank(instance, rank) for rank in range(instance.placement.num_ranks)]
    paths = chains(instance)
    return Bounds(
        makespan_by={
            "work": max(rank.head + rank.work for rank in ranks),
            "window": max(rank.head + rank.work + rank.idle_makespan for rank in ranks),
            "area": max(rank.head + rank.area for rank in ranks),
            "chain": paths.makespan,
            "machine": max(_machine(paths, rank.stages) for rank in ranks),
        },
        span_by={
            "work": max(rank.work for rank in ranks),
            "window": max(rank.work + rank.idle_span for rank in ranks),
            "area": max(rank.area for rank in ranks),
        },
    )


class _Rank:
    """One rank's windows. ``first`` and ``last`` are its stages with the smallest and the largest
    number: where a microbatch comes in, and where it turns."""

    def __init__(self, instance: Instance, rank: int) -> None:
        self._of = instance
        self.stages = instance.placement.stages_of(rank)
        self.work = instance.work[rank]
        self._first, self._last = self.stages[0], self.stages[-1]
        self._capacity = instance.capacity[rank]

    @cached_property
    def head(self) -> float:
        """The earliest start of the first forward."""
        return _down_to(self._of, self._first)

    @cached_property
    def area(self) -> float:
        """The least span in which the capacity can hold everything for as long as it lives."""
        of = self._of
        need = 0.0
        for s in self.stages:
            there_and_back = _back_to(of, s) + of.I[s] - _down_to(of, s)
            need += of.held[s] * there_and_back + of.kept[s] * of.W[s]
        return of.num_microbatches * need / self._capacity if need else 0.0

    @cached_property
    def _idle_head(self) -> float:
        """Idle time before the first backward."""
        of, m = self._of, self._of.num_microbatches
        window = _back_to(of, self._last) - self.head
        if len(self.stages) == 1:
            (s,) = self.stages
            fit = _whole(self._capacity, of.held[s], m)
            return max(0.0, window - fit * of.F[s])
        goods = [(of.F[s], of.held[s], m) for s in self.stages]
        return max(0.0, window - _fill(goods, self._capacity))

    @cached_property
    def _most_after(self) -> float:
        """The most work of backwards that memory can hold at once, without the last microbatch's
        at the first stage."""
        of, m, first = self._of, self._of.num_microbatches, self._first
        if len(self.stages) == 1:
            return max(
                (i - 1) * (of.I[first] + of.W[first])
                + _whole(self._capacity - i * of.held[first], of.kept[first], m - i) * of.W[first]
                for i in range(1, _whole(self._capacity, of.held[first], m) + 1)
            )
        goods = []
        for s in self.stages:
            count = m - (s == first)
            goods.append((of.I[s] + of.W[s], of.held[s], count))
            goods.append((of.W[s], of.kept[s], count))
        return _fill(goods, self._capacity - of.held[first])

    @cached_property
    def _separate(self) -> bool:
        """Whether some backward has to come before the last forward."""
        of = self._of
        return of.num_microbatches * sum(of.held[s] for s in self.stages) > self._capacity * _EXACT

    def _together(self, after: float) -> float:
        return self._idle_head + after if self._separate else max(self._idle_head, after)

    @cached_property
    def _idle_tail(self) -> float:
        of = self._of
        window = _back_to(of, self._first) - _down_to(of, self._last) - of.F[self._last]
        return max(0.0, window - self._most_after)

    @property
    def idle_span(self) -> float:
        """Idle time between the rank's first and last computation."""
        return self._together(self._idle_tail)

    @property
    def idle_makespan(self) -> float:
        """Idle time from the rank's first computation to the end of the step."""
        of, first, last = self._of, self._first, self._last
        # From the last forward to the end of the step, and the most the rank can do meanwhile.
        way = _back_to(of, 0) + of.I[0] + of.W[0] - _down_to(of, last) - of.F[last]
        most = self._most_after + of.I[first] + of.W[first]
        return self._together(max(self._idle_tail, way - most))


def _down_to(of: Instance, stage: int) -> float:
    """The earliest start of a stage's first forward."""
    return sum(of.F[:stage]) + sum(of.down[:stage])


def _back_to(of: Instance, stage: int) -> float:
    """The earliest start of a stage's first backward."""
    return sum(of.F) + sum(of.down) + sum(of.I[stage + 1 :]) + sum(of.up[stage:])


def _whole(capacity: float, size: float, most: int) -> int:
    """How many pieces of a size fit, up to ``most``."""
    if capacity < 0:
        return 0
    return most if size <= 0 or capacity / size >= most else floor(capacity / size * _EXACT)


def _fill(goods: Sequence[tuple[float, float, int]], capacity: float) -> float:
    """The most worth that fits if goods can be cut: rows of worth, size and number of pieces."""
    total, rest = 0.0, max(0.0, capacity)
    density = [worth / size if size else inf for worth, size, _ in goods]
    for n in sorted(range(len(goods)), key=lambda n: -density[n]):
        worth, size, count = goods[n]
        part = min(count, rest / size) if size else count
        total += part * worth
        rest -= part * size
    return total


def _machine(paths: Chains, stages: Sequence[int]) -> float:
    """When a rank's jobs are over, and what follows each, if the one with the longest rest always
    goes first and is interrupted where one with a longer rest comes in."""
    jobs = sorted(job for stage in stages for job in paths.jobs(stage))
    waiting: list[tuple[float, float]] = []  # minus the rest, what is left to do
    now = best = 0.0
    for begin, length, rest in jobs:
        while waiting and now < begin:
            key, left = heappop(waiting)
            done = min(left, begin - now)
            now += done
            if done < left:
                heappush(waiting, (key, left - done))
            else:
                best = max(best, now - key)
        now = max(now, begin)
        heappush(waiting, (-rest, length))
    while waiting:
        key, left = heappop(waiting)
        now += left
        best = max(best, now - key)
    return best
