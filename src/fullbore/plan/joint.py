"""Layers to stages and the order of their work, planned together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from fullbore.errors import ParameterError
from fullbore.ir import Placement
from fullbore.plan.candidate import Candidate
from fullbore.plan.layers import LayerCosts
from fullbore.plan.partition import Partition, near_best
from fullbore.plan.search import EFFORT, Plan, Progress, check_effort, plan, tried

_SHORT = 1
"""The effort of the search that compares partitions."""


@dataclass(frozen=True, slots=True)
class Joint:
    """A plan and the layers of its stages.

    Attributes:
        plan: the planner's answer.
        costs: what it was made for: they know the split of every placement.
        even: the best that was found for the split by number on the same placement, in a shorter
            search; None where that does not fit.
        splits: how many splits were tried.
    """

    plan: Plan
    costs: LayerCosts
    even: Candidate | None
    splits: int

    @property
    def partition(self) -> Partition:
        """The layers of the best schedule's stages."""
        return self.costs.split(self.plan.best.placement)


def joint(
    costs: LayerCosts,
    *,
    num_ranks: int,
    num_microbatches: int,
    memory: float | None = None,
    stages_per_rank: Sequence[int] = (1, 2, 4),
    shapes: Sequence[str] = ("loop", "vee"),
    splits: int = 8,
    effort: int = EFFORT,
    deadline: float | None = None,
    on_progress: Progress = lambda part, best: None,
    **options: Any,
) -> Joint:
    """Plan partition and schedule together.

    On every placement a short search for each of some partitions that are near the best shows which
    one suits the schedules; all placements are then searched with theirs.

    Args:
        costs: of the layers.
        num_ranks, num_microbatches, memory, stages_per_rank, shapes, effort, on_progress, options:
            as of :func:`plan`.
        splits: how many partitions to try on each placement; 1: only the one whose busiest rank has
            least to do.
        deadline: seconds after which to stop with the best so far, of which partitions get half.

    Raises:
        ParameterError: an argument is out of range, or nothing fits the memory.
    """
    _check(splits, effort, deadline)
    begun = monotonic()
    options |= {"num_ranks": num_ranks, "num_microbatches": num_microbatches, "memory": memory}
    base = replace(costs, memory=memory)
    until = None if deadline is None else begun + deadline / 2
    placements = tried(num_ranks, stages_per_rank, shapes)
    short = {"effort": min(effort, _SHORT), **options}
    chosen, count = _choose(base, placements, splits, until=until, **short)
    planned = replace(base, chosen=chosen)
    result = plan(
        costs=planned,
        stages_per_rank=stages_per_rank,
        shapes=shapes,
        effort=effort,
        deadline=None if deadline is None else max(0.1, begun + deadline - monotonic()),
        on_progress=on_progress,
        **options,
    )
    return Joint(result, planned, _even(planned, result, effort=min(effort, 2), **options), count)


def _check(splits: int, effort: int, deadline: float | None) -> None:
    if type(splits) is not int or splits < 1:
        raise ParameterError(f"joint: splits must be a whole number from 1 on; got {splits!r}")
    check_effort(effort, deadline)


def _choose(
    costs: LayerCosts,
    placements: Sequence[Placement],
    splits: int,
    *,
    until: float | None,
    **task: Any,
) -> tuple[dict[Placement, Partition], int]:
    """The split of each placement that does best in a short search, and how many were tried. At
    least one is tried of each, also after ``until``."""
    chosen: dict[Placement, Partition] = {}
    if splits == 1:
        return chosen, 1
    count = 0
    for placement in placements:
        if len(costs.layers) < placement.num_stages:
            continue
        lengths: dict[float, Partition] = {}
        for split in _splits(costs, placement, splits):
            if lengths and until is not None and monotonic() > until:
                break
            lengths.setdefault(_length(costs, split, **task), split)
            count += 1
        chosen[placement] = lengths[min(lengths)]
    return chosen, count


def _splits(costs: LayerCosts, placement: Placement, count: int) -> list[Partition]:
    """The best by time first, then that by number, which nobody should be worse off than, then what
    is near the best, and what leaves memory for more microbatches or fewer."""
    found = [costs.split(placement), costs.even(placement)]
    for in_flight in (placement.num_ranks, 1):
        found += near_best(
            costs.layers, placement, memory=costs.memory, in_flight=in_flight, count=count
        )
    known = {split.stages: split for split in reversed(found)}
    unique = [split for split in found if known.pop(split.stages, None) is not None]
    first = [split for split in unique if split.stages in (found[0].stages, found[1].stages)]
    rest = [split for split in unique if split not in first]
    return [*first, *sorted(rest, key=lambda split: max(split.load))][:count]


def _length(costs: LayerCosts, split: Partition, **task: Any) -> float:
    """How long the best of a short search takes; infinite if nothing fits."""
    with suppress(ParameterError):
        one = replace(costs, chosen={split.placement: split})
        return plan(costs=one, placements=[split.placement], **task).best.length
    return float("inf")


def _even(costs: LayerCosts, found: Plan, **task: Any) -> Candidate | None:
    placement = found.best.placement
    split = costs.even(placement)
    if split.stages == costs.split(placement).stages:
        return found.best
    with suppress(ParameterError):
        one = replace(costs, chosen={placement: split})
        return plan(costs=one, placements=[placement], **task).best
    return None
