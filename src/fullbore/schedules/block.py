"""What the low-memory V families are made of: a building block, repeated for every microbatch.

A block is laid out in slots for F = I = W. Its length, compared with the slots from one microbatch
to the next, says how many microbatches are alive (Controllable Memory, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fullbore.ir import Action, Kind, Placement, Schedule
from fullbore.schedules.costs import limited, unit_costs
from fullbore.schedules.fill import fill

_PERIOD = 6  # two F, two I and two W a rank
_HELD = {Kind.F: 1, Kind.I: 0, Kind.W: -1}

Cell = tuple[int, int, Action]
"""Slot, rank and what the rank runs there."""


def repeat(
    placement: Placement, num_microbatches: int, starts: Sequence[Sequence[int]], *, limit: int
) -> Schedule:
    """The schedule of a block, every six slots again.

    Each W takes the next free slot. At the start of a rank and at its end, where slots are free,
    actions move to earlier ones, as far as memory allows; weight gradients that come after its last
    forward go where it would be idle.

    Args:
        placement: a V of two stages a rank.
        num_microbatches: M.
        starts: by rank, the slots of the first microbatch's F on the way down, F on the way up, I
            on the way up and I on the way down. They differ modulo six.
        limit: what a rank may hold, in microbatches; the block as it is holds no more.
    """
    cells = sorted(
        (slot + _PERIOD * microbatch, rank, action._replace(microbatch=microbatch))
        for rank, slots in enumerate(starts)
        for slot, action in _block(placement.stages_of(rank), slots)
        for microbatch in range(num_microbatches)
    )
    moved = _squeeze(cells, placement.num_stages, starts, 2 * limit)
    orders: list[list[Action]] = [[] for _ in starts]
    for _, rank, action in moved:
        orders[rank].append(action)
    for order in orders:
        last = max(n for n, action in enumerate(order) if action.kind is Kind.F)
        order[last:] = [action for action in order[last:] if action.kind is not Kind.W]
    costs = limited(placement, unit_costs(placement), limit)
    filled = fill(orders, placement, num_microbatches, costs=costs)
    assert filled is not None, "the block fits its memory"
    return filled.schedule


def _block(stages: Sequence[int], slots: Sequence[int]) -> list[tuple[int, Action]]:
    down, up = stages
    kinds = ((down, Kind.F), (up, Kind.F), (up, Kind.I), (down, Kind.I))
    block = [(slot, Action(*what)) for slot, what in zip(slots, kinds, strict=True)]
    taken = {slot % _PERIOD for slot in slots}
    for slot, action in block[2:]:
        free = next(s for s in range(slot + 1, slot + 1 + _PERIOD) if s % _PERIOD not in taken)
        taken.add(free % _PERIOD)
        block.append((free, Action(action.stage, Kind.W)))
    return block


@dataclass(slots=True)
class _Table:
    """The slots of one rank: which are taken, and what it holds from each on."""

    taken: set[int] = field(default_factory=set)
    held: list[int] = field(default_factory=list)


def _squeeze(
    cells: Sequence[Cell], num_stages: int, starts: Sequence[Sequence[int]], capacity: int
) -> list[Cell]:
    """The cells, in order of time, some of them earlier. Of the middle nothing moves: there all
    slots are taken, and an action that leaves its place makes the pattern another one."""
    tables = _tables(cells, len(starts))
    last = {rank: slot for slot, rank, action in cells if action[:2] == (rank, Kind.F)}
    ends: dict[Action, int] = {}
    moved = []
    for slot, rank, action in cells:
        table = tables[rank]
        best, ready = slot, _ready(action, num_stages, ends)
        if slot > last[rank]:
            best = _earliest(table, action, max(ready, last[rank]), slot, capacity)
        elif slot < starts[rank][3] + _PERIOD:
            best = _earliest(table, action, ready, slot, capacity)
        if best < slot:
            table.taken ^= {slot, best}
            for between in range(best, slot):
                table.held[between] += _HELD[action.kind]
        ends[action] = best + 1
        moved.append((best, rank, action))
    return sorted(moved)


def _tables(cells: Sequence[Cell], num_ranks: int) -> list[_Table]:
    tables = [_Table(held=[0] * (cells[-1][0] + 1)) for _ in range(num_ranks)]
    for slot, rank, action in cells:
        tables[rank].taken.add(slot)
        tables[rank].held[slot] = _HELD[action.kind]
    for table in tables:
        for slot in range(1, len(table.held)):
            table.held[slot] += table.held[slot - 1]
    return tables


def _ready(action: Action, num_stages: int, ends: dict[Action, int]) -> int:
    stage, kind = action.stage, action.kind
    if kind is Kind.W:
        return ends[action._replace(kind=Kind.I)]
    if kind is Kind.F:
        return ends[action._replace(stage=stage - 1)] if stage else 0
    if stage == num_stages - 1:
        return ends[action._replace(kind=Kind.F)]
    return ends[action._replace(stage=stage + 1)]


def _earliest(table: _Table, action: Action, ready: int, slot: int, capacity: int) -> int:
    """The first free slot; of a forward, the first from which on there is room for it."""
    first = ready
    if action.kind is Kind.F:
        first = slot
        while first > ready and table.held[first - 1] < capacity:
            first -= 1
    return next((free for free in range(first, slot) if free not in table.taken), slot)
