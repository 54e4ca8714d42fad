"""ZB: zero bubble for given costs and memory, by a greedy rule (ZB-1p, ZB-2p)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, product

from fullbore.ir import Action, Kind, Placement, Schedule
from fullbore.schedules.costs import StageCosts, limited, unit_costs
from fullbore.schedules.family import Family
from fullbore.schedules.fill import Filled, Filler


def build(
    placement: Placement,
    num_microbatches: int,
    *,
    limit: int | None = None,
    costs: StageCosts | None = None,
) -> Schedule:
    """Section 3.1 of the paper: run as many forwards ahead as fit the memory and the time before
    the first gradient comes, then one I and one F in turn, while weight gradients fill the gaps.

    Whether a forward runs ahead that would delay the first gradient, and whether one may be left
    out where a gradient waits, is tried in all combinations. The one with the smallest span is
    taken, of equal ones that with the smallest makespan.

    Args:
        placement: linear.
        num_microbatches: M.
        limit: what a rank may hold, in microbatches: P unless given (ZB-1p), 2P for ZB-2p.
        costs: of each stage; F = I = W unless given.
    """
    within = limited(placement, costs or unit_costs(placement), limit)
    tried = [
        _greedy(placement, num_microbatches, within, late=late, skip=skip)
        for late, skip in product((False, True), repeat=2)
    ]
    return min(tried, key=lambda filled: filled[:2]).schedule


def _greedy(
    placement: Placement, num_microbatches: int, costs: StageCosts, *, late: bool, skip: bool
) -> Filled:
    filler = Filler(placement, num_microbatches, costs)
    stages = range(placement.num_stages)
    forwards = _warm_up(num_microbatches, costs, late=late)
    for stage in stages:
        for microbatch in range(forwards[stage]):
            filler.place(Action(stage, Kind.F, microbatch))
    for microbatch in range(num_microbatches):
        for stage in reversed(stages):
            filler.place(Action(stage, Kind.I, microbatch))
        for stage in stages:
            ran, before = forwards[stage], forwards[stage - 1] if stage else num_microbatches + 2
            must = ran == microbatch + 1
            # Each rank stays one forward ahead of the next, as long as there are any.
            if ran == num_microbatches or (ran + 1 >= before < num_microbatches and not must):
                continue
            if skip and not must and _gradient_waits(filler, forwards, stage, costs):
                continue
            forward = Action(stage, Kind.F, ran)
            if filler.has_room(forward):
                filler.place(forward)
                forwards[stage] += 1
    return filler.finish()


def _gradient_waits(filler: Filler, forwards: Sequence[int], stage: int, costs: StageCosts) -> bool:
    """Whether the next rank has forwards to run, and its next gradient may be there already."""
    after = stage + 1
    if after == len(forwards) or forwards[stage] - forwards[after] < 2:
        return False
    ready = filler.clock(after) + costs.F[after] + costs.I[after] + costs.up[stage]
    return ready <= filler.clock(stage)


def _warm_up(num_microbatches: int, costs: StageCosts, *, late: bool) -> list[int]:
    """How many forwards each rank runs ahead: those that end before its first I can start, and if
    ``late`` one that only starts before."""
    heads = [0.0, *accumulate(f + hop for f, hop in zip(costs.F, costs.down, strict=True))]
    first = heads[-1]  # of the last stage; its hop is 0
    fit = []
    for stage in reversed(range(len(costs.F))):
        wait, time = first - heads[stage], costs.F[stage]
        fit.append(num_microbatches if not time else int(wait / time * (1 + 1e-9)) + late)
        first += costs.I[stage] + (costs.up[stage - 1] if stage else 0)
    ahead: list[int] = []
    for stage, count in enumerate(reversed(fit)):
        held, room = costs.held[stage], float(num_microbatches)
        if held:
            free = costs.capacity[stage] - costs.reserve([stage])
            room = min(room, free / held * (1 + 1e-9))
        # All of them, if the rank before runs all.
        before = ahead[-1] if ahead else num_microbatches
        most = before if before == num_microbatches else before - 1
        ahead.append(max(1, min(most, int(room), count)))
    return ahead


FAMILY = Family(
    name="zb",
    build=build,
    shape="linear",
    description="zero bubble for your costs and memory; weight gradients fill what would be idle",
    source="Qi et al. 2024, Zero Bubble Pipeline Parallelism, arXiv:2401.10241, section 3.1",
    instead="interleaved_zero_bubble",
    options={"limit": "microbatches that a rank may hold; P unless given (ZB-1p), 2P for ZB-2p"},
    uses_costs=True,
)
