"""Costs as the families see them that arrange their order by costs: plain numbers by stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

from fullbore.errors import ParameterError
from fullbore.ir import Placement

if TYPE_CHECKING:
    from fullbore.sim import Costs, Table

_EXACT = 1 + 1e-9  # sums of what does not fit a float exactly may be as much above the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """What a family arranges its order by. Tuples have a number for each stage, ``capacity`` one
    for each rank.

    Attributes:
        F, I, W: times of the forward, the input gradient and the weight gradient.
        down: the time of a message from stage s to s+1; 0 if one rank holds both, and for the last.
        up: that of a message from stage s+1 to s, at index s.
        held: what a stage holds of a microbatch from F to I.
        kept: what it holds from I to W.
        full: what it holds while F or I runs: more than ``held`` where I runs the forward again.
        capacity: what a rank may hold of activations; ``inf`` if there is no limit.
    """

    F: tuple[float, ...]
    I: tuple[float, ...]  # noqa: E741 - the field's name
    W: tuple[float, ...]
    down: tuple[float, ...]
    up: tuple[float, ...]
    held: tuple[float, ...]
    kept: tuple[float, ...]
    full: tuple[float, ...]
    capacity: tuple[float, ...]

    def most(self, stages: Iterable[int]) -> float:
        """What one microbatch of each of these stages takes at most."""
        return sum(self.full[s] for s in stages)

    def reserve(self, stages: Iterable[int]) -> float:
        """How much more than between F and I one of these stages may hold at other times."""
        return max(self.full[s] - self.held[s] for s in stages)


def unit_costs(placement: Placement) -> StageCosts:
    """F = I = W = 1, messages take no time, and a stage holds 1 of a microbatch until its W."""
    ones = (1.0,) * placement.num_stages
    zeros = (0.0,) * placement.num_stages
    return StageCosts(
        F=ones,
        I=ones,
        W=ones,
        down=zeros,
        up=zeros,
        held=ones,
        kept=ones,
        full=ones,
        capacity=(inf,) * placement.num_ranks,
    )


def stage_costs(
    placement: Placement, costs: Costs | None, memory: float | None = None
) -> StageCosts:
    """The costs of a placement's stages.

    Posting sends, links that are shared, messages that wait to be taken in, and full backwards and
    overlaps that cost less than their parts are left to the simulator.

    Args:
        placement: which rank holds which stage.
        costs: a cost model such as ``UniformCosts`` or ``TableCosts``; None: unit costs.
        memory: what a rank may hold in all, in bytes, the costs' static bytes included; None: any
            amount. Without costs that say what activations take it is no limit.

    Raises:
        ParameterError: the costs do not fit the placement, or a rank cannot hold one microbatch of
            each of its stages.
    """
    if costs is None:
        return unit_costs(placement)
    table = costs.table(placement)
    held = tuple(
        min(size, table.message_bytes[s]) if s in table.recompute else size
        for s, size in enumerate(table.activation_bytes)
    )
    kept = tuple(table.kept_bytes)
    full = tuple(map(max, table.activation_bytes, kept))
    if not any(table.activation_bytes):
        # Nobody has said what they take, so microbatches are counted.
        held = kept = full = (1.0,) * placement.num_stages
        memory = None
    found = StageCosts(
        F=tuple(table.F),
        I=tuple(i + (table.F[s] if s in table.recompute else 0) for s, i in enumerate(table.I)),
        W=tuple(table.W),
        down=hops(placement, table, 1),
        up=hops(placement, table, -1),
        held=held,
        kept=kept,
        full=full,
        capacity=(inf,) * placement.num_ranks,
    )
    return found if memory is None else _within(placement, found, table.static_bytes, memory)


def _within(
    placement: Placement, costs: StageCosts, static_bytes: Sequence[float], memory: float
) -> StageCosts:
    static = placement.sum_by_rank(static_bytes)
    capacity = []
    for rank, own in enumerate(static):
        stages = placement.stages_of(rank)
        least = sum(costs.held[s] for s in stages) + costs.reserve(stages)
        if not memory * _EXACT >= own + least:
            raise ParameterError(
                f"memory: rank {rank} needs {own + least:g} at least, for one microbatch of each "
                f"of its stages; got {memory:g}. Allow more, or hold less"
            )
        capacity.append(max(memory - own, least))
    return replace(costs, capacity=tuple(capacity))


def limited(placement: Placement, costs: StageCosts, limit: int | None) -> StageCosts:
    """The costs with memory for ``limit`` microbatches on each rank; without a limit of either
    kind for P microbatches, as many as 1F1B holds."""
    if limit is None and min(costs.capacity) < inf:
        return costs
    count = placement.num_ranks if limit is None else limit
    capacity = (
        min(own, count * costs.most(placement.stages_of(rank)))
        for rank, own in enumerate(costs.capacity)
    )
    return replace(costs, capacity=tuple(capacity))


def hops(placement: Placement, table: Table, step: int) -> tuple[float, ...]:
    """The time of a message between stages s and s+1, at index s; 0 within a rank, and for the
    last.

    Args:
        placement: which rank holds which stage.
        table: the costs.
        step: 1 for messages from s to s+1, -1 for those from s+1 to s.
    """
    times = []
    for stage, (upper, lower) in enumerate(pairwise(placement.ranks), 1):
        latency, per_byte = table.link((upper, lower) if step > 0 else (lower, upper))
        times.append(latency + table.message_bytes[stage] * per_byte if upper != lower else 0.0)
    return (*times, 0.0)
