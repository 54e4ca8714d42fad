"""ZBV for given costs and memory: a V whose weight gradients fill what would be idle time."""

from __future__ import annotations

from collections.abc import Iterable

from fullbore.ir import Action, Kind, Placement, Schedule
from fullbore.schedules import v_half, v_min, zbv_zero_bubble
from fullbore.schedules.costs import StageCosts, limited, unit_costs
from fullbore.schedules.family import Family
from fullbore.schedules.fill import Filled, fill


def build(
    placement: Placement,
    num_microbatches: int,
    *,
    limit: int | None = None,
    costs: StageCosts | None = None,
) -> Schedule:
    """The first of ZBV, V-Half and V-Min that fits the memory, as it is or with each W where the
    greedy rule of section 3.1 of the paper puts it at these costs: that with the smaller span, of
    equal ones that with the smaller makespan.

    Where none fits, fewer microbatches come in at a time. More memory than ZBV needs is not used.

    Args:
        placement: a V.
        num_microbatches: M.
        limit: what a rank may hold, in microbatches; P unless given.
        costs: of each stage; F = I = W unless given.
    """
    within = limited(placement, costs or unit_costs(placement), limit)

    def fitting(orders: Iterable[list[list[Action]]]) -> list[Filled]:
        tried = (fill(order, placement, num_microbatches, costs=within) for order in orders)
        return [filled for filled in tried if filled is not None]

    found: list[Filled] = []
    for family in (zbv_zero_bubble, v_half, v_min):
        if not found:
            schedule = family.build(placement, num_microbatches)
            found = fitting(_order(schedule, own=own) for own in (True, False))
    size = placement.num_ranks
    while not found:
        size -= 1
        found = fitting([_in_turn(placement, num_microbatches, size)])
    return min(found, key=lambda filled: filled[:2]).schedule


def _order(schedule: Schedule, *, own: bool) -> list[list[Action]]:
    """Each rank's F and I, and its ``own`` W or none."""
    return [
        [action for action in program if own or action.kind is not Kind.W]
        for program in schedule.programs
    ]


def _in_turn(placement: Placement, num_microbatches: int, size: int) -> list[list[Action]]:
    """The F and I of V-Min for ``size`` microbatches, again for the next ones, to the last."""
    orders: list[list[Action]] = [[] for _ in range(placement.num_ranks)]
    for start in range(0, num_microbatches, size):
        schedule = v_min.build(placement, min(size, num_microbatches - start))
        for order, part in zip(orders, _order(schedule, own=False), strict=True):
            order += [action._replace(microbatch=start + action.microbatch) for action in part]
    return orders


FAMILY = Family(
    name="zbv_greedy",
    build=build,
    shape="vee",
    description="zbv for your costs and memory; weight gradients fill what would be idle",
    source="Qi et al. 2024, Zero Bubble Pipeline Parallelism, arXiv:2401.10241, sections 3.1 and 6",
    instead="interleaved_zero_bubble",
    options={"limit": "microbatches that a rank may hold; P unless given"},
    uses_costs=True,
)
