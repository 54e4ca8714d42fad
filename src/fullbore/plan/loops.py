"""The search's two loops, ready to be called for an instance."""

from __future__ import annotations

from functools import cache
from time import monotonic
from typing import Any

from fullbore.ir import Placement, Schedule
from fullbore.plan import swaps
from fullbore.plan.compiled import Loops, loops
from fullbore.plan.instance import Instance, make_instance
from fullbore.plan.points import Point, Space
from fullbore.schedules import dispatch
from fullbore.schedules.dispatcher import Dispatcher
from fullbore.sim import UniformCosts


class Evaluator:
    """Gives the makespan or span of points and orders. The simulator has the last word: here links
    are not shared and posting takes no time.

    Args:
        of: the instance.
        by_span: whether the span counts.
        compiled: as of ``compiled.loops``.
    """

    def __init__(self, of: Instance, *, by_span: bool, compiled: bool | None = None) -> None:
        made = _loops(compiled)
        placement, numbers = of.placement, made.numbers
        self._of, self._functions, self.numbers = of, made.functions, numbers
        self._dispatcher = Dispatcher(
            placement,
            of.num_microbatches,
            times=[*of.F, *of.I, *of.W, *of.down, *of.up],
            memory=[*of.held, *of.kept, *of.capacity],
            by_span=by_span,
            function=made.functions["dispatch"],
            numbers=numbers,
        )
        self._scratch = (
            numbers([0.0] * (2 * placement.num_stages * of.num_microbatches)),
            numbers([0] * placement.num_ranks),
            numbers([0.0] * (3 * placement.num_ranks)),
        )

    @property
    def actions(self) -> int:
        """How many actions an order has: what evaluating it costs."""
        return len(self._dispatcher.order)

    @property
    def order(self) -> list[int]:
        """The order of the point that was evaluated last."""
        return [int(code) for code in self._dispatcher.order]

    def __call__(self, point: Point) -> float:
        """The length of what a point's due dates give; ``NEVER`` if they give nothing."""
        return self._dispatcher(point.shift(), point.rules, base=point.base)

    def length(self, order: list[int]) -> float:
        """That of an order; ``NEVER`` if it cannot run or needs more memory than there is."""
        length = self._functions["length"]
        return float(length(*self._dispatcher.fixed, self.numbers(order), *self._scratch))

    def starts(self, order: list[int]) -> Any:
        """When each F and I of an order starts, whatever memory it needs: a point's base."""
        sizes, layout, times, memory = self._dispatcher.fixed
        free = self.numbers([0.0] * len(memory))
        self._functions["length"](sizes, layout, times, free, self.numbers(order), *self._scratch)
        ends, m = self._scratch[0], self._of.num_microbatches
        return self.numbers([float(end) - float(times[n // m]) for n, end in enumerate(ends)])

    def swap(
        self, order: list[int], *, length: float, moves: int, tolerance: float, seed: int
    ) -> tuple[float, list[int]]:
        """Move actions about; the best length and order."""
        numbers = self.numbers
        best = numbers([*order])
        found = self._functions["swaps"](
            *self._dispatcher.fixed,
            numbers([*order]),
            best,
            *self._scratch,
            numbers([seed]),
            numbers([float(moves), tolerance, length]),
        )
        return float(found), [int(code) for code in best]

    def schedule(self, order: list[int]) -> Schedule:
        """An order as a schedule."""
        programs = tuple(map(tuple, self._dispatcher.programs(order)))
        return Schedule(programs, self._of.placement, self._of.num_microbatches, name="plan")


@cache
def _loops(compiled: bool | None) -> Loops:  # noqa: FBT001 - hashed as it is
    made = loops(dispatch.FUNCTIONS, compiled=compiled)
    more = loops(swaps.FUNCTIONS, compiled=compiled)
    functions: dict[str, Any] = {**made.functions, **more.functions}
    return Loops(functions, made.numbers, made.compiled)


def warm_up(*, compiled: bool | None = None) -> float:
    """Get the loops ready, which may mean to compile them; how many seconds it took."""
    begun = monotonic()
    of = make_instance(Placement.linear(1), 1, costs=UniformCosts(F=1, I=1, W=1))
    evaluator, space = Evaluator(of, by_span=False, compiled=compiled), Space(of)
    evaluator(Point(evaluator.numbers(space.regular()), space.still, space.rules()))
    order = evaluator.order
    evaluator.starts(order)
    evaluator.swap(order, length=3.0, moves=1, tolerance=0.0, seed=1)
    return monotonic() - begun
