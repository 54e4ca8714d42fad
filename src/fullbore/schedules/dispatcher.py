"""What ``dispatch`` needs and gives, for a placement and its costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Any

from fullbore.ir import Action, Kind, Placement, Schedule
from fullbore.schedules.dispatch import NEVER, dispatch

_KINDS = (Kind.F, Kind.I, Kind.W)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How a rank chooses.

    Attributes:
        period: the time between the due dates of one microbatch and the next; with a base, what its
            dates are multiplied by.
        patience: how long a rank waits for something more urgent, as a part of the time of what it
            could begin instead.
        fill: how long a gap must be for a W, as a part of the W's time.
        slack: how long before it is due a forward may start.
    """

    period: float
    patience: float = 0.0
    fill: float = 1.0
    slack: float = inf


class Dispatcher:
    """Makes orders from due dates.

    An order is a list of numbers, rank by rank: ``(kind * S + stage) * M + microbatch`` for each
    action, with 0 for F, 1 for I and 2 for W.

    Args:
        placement: which rank holds which stage.
        num_microbatches: M.
        times: of F, of I and of W, of a message from a stage to the next, and back, by stage: 5 S
            numbers.
        memory: what a stage holds from F to I, from I to W, and each rank's capacity: 2 S + P.
        by_span: whether the span counts, instead of the makespan.
        function: ``dispatch``, or what a compiler made of it.
        numbers: makes what the function takes as a sequence of numbers of a list; by default the
            list itself.
    """

    def __init__(
        self,
        placement: Placement,
        num_microbatches: int,
        *,
        times: Sequence[float],
        memory: Sequence[float],
        by_span: bool = False,
        function: Callable[..., Any] = dispatch,
        numbers: Callable[[list[Any]], Any] = list,
    ) -> None:
        num_ranks, num_stages = placement.num_ranks, placement.num_stages
        stages = [placement.stages_of(rank) for rank in range(num_ranks)]
        self._begin = [0, *accumulate(map(len, stages))]
        self._placement, self._m = placement, num_microbatches
        self._function, self._numbers = function, numbers
        largest = [min(float(size), NEVER / 2) for size in memory]
        # Sizes, layout, times and memory, as the functions take them.
        self.fixed = (
            numbers([num_ranks, num_stages, num_microbatches, int(by_span)]),
            numbers([*placement.ranks, *(s for held in stages for s in held), *self._begin]),
            numbers([*map(float, times)]),
            numbers(largest),
        )
        self.order = numbers([0] * (3 * num_stages * num_microbatches))
        self._regular = numbers([*map(float, range(num_microbatches))] * (2 * num_stages))
        self._scratch = (
            numbers([0.0] * (2 * num_stages)),
            numbers([0.0] * (2 * num_stages * num_microbatches)),
            numbers([0] * (3 * num_stages + num_ranks)),
            numbers([0.0] * (4 * num_ranks)),
            numbers([0] * (2 * num_ranks)),
            self.order,
        )

    def __call__(self, due: Sequence[float], rules: Rules, *, base: Any = None) -> float:
        """The makespan or span of what due dates give; ``NEVER`` if the order gets stuck.

        Args:
            due: those of microbatch 0, of F and of I, by stage; each other one's are a period
                after those of the one before.
            rules: how ranks choose.
            base: dates by kind, stage and microbatch, to which ``due`` is added instead; made by
                ``numbers``.
        """
        numbers = self._numbers
        chosen = [rules.patience, rules.fill, min(rules.slack, NEVER / 2), rules.period]
        return float(
            self._function(
                *self.fixed,
                self._regular if base is None else base,
                numbers([*map(float, due)]),
                numbers([*map(float, chosen)]),
                *self._scratch,
            )
        )

    def programs(self, order: Sequence[int] | None = None) -> list[list[Action]]:
        """The programs of the order that the last call gave, or of such an order."""
        codes = [int(code) for code in (self.order if order is None else order)]
        num_stages, m = self._placement.num_stages, self._m
        return [
            [
                Action(code // m % num_stages, _KINDS[code // m // num_stages], code % m)
                for code in codes[3 * m * start : 3 * m * stop]
            ]
            for start, stop in zip(self._begin, self._begin[1:], strict=False)
        ]


def order_of(schedule: Schedule) -> list[int]:
    """A schedule's order, as numbers: a full backward is an I and then a W, and the parts of an
    overlap come one after another."""
    num_stages, m = schedule.num_stages, schedule.num_microbatches
    rows = {
        Kind.F: (0,),
        Kind.I: (num_stages,),
        Kind.W: (2 * num_stages,),
        Kind.B: (num_stages, 2 * num_stages),
    }
    return [
        (row + stage) * m + microbatch
        for program in schedule.programs
        for action in program
        for stage, kind, microbatch, _ in action.leaves
        for row in rows[kind]
    ]
