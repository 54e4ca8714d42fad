"""What a plan is made for: a placement, its costs and its memory, as plain numbers by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from fullbore.errors import ParameterError
from fullbore.ir import Placement
from fullbore.schedules.costs import hops
from fullbore.schedules.family import MOST_FORWARDS
from fullbore.sim import Costs, Table

_EXACT = 1 + 1e-9  # sums of what does not fit a float exactly may be as much above the limit


@dataclass(frozen=True, slots=True)
class Instance:
    """A scheduling problem. Tuples have a number for each stage, ``capacity`` one for each rank.

    Attributes:
        placement: which rank holds which stage.
        num_microbatches: M.
        F, I, W: times of the forward, the input gradient and the weight gradient.
        held: what a stage holds of a microbatch from F to I.
        kept: what it holds from I to W; never more than ``held``.
        down: the time of a message from stage s to s+1; 0 if one rank holds both, and for the last.
        up: the time of a message from stage s+1 to s, at index s.
        capacity: what a rank may hold of activations; ``inf`` if there is no limit.
    """

    placement: Placement
    num_microbatches: int
    F: tuple[float, ...]
    I: tuple[float, ...]  # noqa: E741 - the field's name
    W: tuple[float, ...]
    held: tuple[float, ...]
    kept: tuple[float, ...]
    down: tuple[float, ...]
    up: tuple[float, ...]
    capacity: tuple[float, ...]

    @property
    def work(self) -> tuple[float, ...]:
        """How long each rank computes."""
        busy = [0.0] * self.placement.num_ranks
        for stage, rank in enumerate(self.placement.ranks):
            busy[rank] += self.num_microbatches * (self.F[stage] + self.I[stage] + self.W[stage])
        return tuple(busy)


def make_instance(
    placement: Placement,
    num_microbatches: int,
    *,
    costs: Costs,
    memory: float | Sequence[float] | None = None,
) -> Instance:
    """The problem that costs and a memory limit pose on a placement.

    What makes a schedule faster than its separate F, I and W is taken at its best for every
    action, so that a bound for the instance holds for every schedule: full backwards that cost less
    than I and W, and overlaps that cost less than their parts. What makes it slower is left to the
    simulator: posting sends, links that are shared, buffers of messages.

    Args:
        placement: which rank holds which stage.
        num_microbatches: M.
        costs: what things cost.
        memory: what a rank may hold in all, in bytes, or such a number for each rank; None: any
            amount. What the costs call static is in it.

    Raises:
        ParameterError: the number of microbatches is no whole number from 1 on or too large, the
            costs do not fit the placement, or a rank cannot hold one microbatch of each of its
            stages.
    """
    _check_microbatches(num_microbatches, placement)
    table = costs.table(placement)
    again = [f if s in table.recompute else 0.0 for s, f in enumerate(table.F)]
    backward = [min(i, b) for i, b in zip(table.I, table.B, strict=True)]
    rest = [max(0.0, min(w, b - i)) for w, b, i in zip(table.W, table.B, backward, strict=True)]
    share = _overlap_share(table, [b + a for b, a in zip(backward, again, strict=True)])
    held = tuple(
        min(full, message) if s in table.recompute else full
        for s, (full, message) in enumerate(
            zip(table.activation_bytes, table.message_bytes, strict=True)
        )
    )
    return Instance(
        placement=placement,
        num_microbatches=num_microbatches,
        F=tuple(share * f for f in table.F),
        I=tuple(share * (i + a) for i, a in zip(backward, again, strict=True)),
        W=tuple(rest),
        held=held,
        kept=tuple(map(min, held, table.kept_bytes)),
        down=hops(placement, table, 1),
        up=hops(placement, table, -1),
        capacity=_capacity(placement, table, held, memory),
    )


def _check_microbatches(count: int, placement: Placement) -> None:
    most = max(1, MOST_FORWARDS // placement.num_stages)
    if type(count) is not int or not 1 <= count <= most:
        raise ParameterError(
            f"microbatches must be a whole number from 1 to {most:,} here; got {count!r}"
        )


def _overlap_share(table: Table, backward: Sequence[float]) -> float:
    """The largest part of F and I that every overlap as one block still takes in all."""
    if table.overlap is None:
        return 1.0
    stages = range(len(table.F))
    blocks = ((table.block(s, t), table.F[s] + backward[t]) for s in stages for t in stages)
    return min([1.0, *(block / parts for block, parts in blocks if block is not None and parts)])


def _capacity(
    placement: Placement,
    table: Table,
    held: tuple[float, ...],
    memory: float | Sequence[float] | None,
) -> tuple[float, ...]:
    num_ranks = placement.num_ranks
    if memory is None:
        return (inf,) * num_ranks
    limits = [memory] * num_ranks if isinstance(memory, int | float) else [*memory]
    if len(limits) != num_ranks:
        raise ParameterError(f"memory: one limit a rank is needed, {num_ranks}; got {len(limits)}")
    found = []
    for rank, limit in enumerate(limits):
        stages = placement.stages_of(rank)
        static = sum(table.static_bytes[s] for s in stages)
        least = sum(held[s] for s in stages)
        if not limit * _EXACT >= static + least:
            raise ParameterError(
                f"memory: rank {rank} needs {static + least:g} at least, for one microbatch of "
                f"each of its stages; got {limit:g}. Allow more, or hold less"
            )
        found.append(max(limit - static, least))
    return tuple(found)
