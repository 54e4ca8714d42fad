"""How much memory each rank holds, over time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fullbore.ir import Action, Kind, Schedule
from fullbore.sim.costs import Costs, Table
from fullbore.sim.timeline import Slot, Timeline


class Level(NamedTuple):
    """From ``time`` on, a rank holds ``bytes``, since ``action`` started or ended."""

    time: float
    bytes: float
    action: Action


class _Change(NamedTuple):
    time: float
    adds: bool
    rank: int
    bytes: float
    action: Action


def memory_over_time(
    schedule: Schedule, timeline: Timeline, costs: Costs
) -> tuple[tuple[Level, ...], ...]:
    """What each rank holds, as a level from each moment at which it changes.

    * A stage holds ``activation_bytes`` of a microbatch from the start of F to the end of I or B,
      and ``kept_bytes`` on to the end of W. A stage that recomputes holds its input between F and
      I. Scratch memory within an action is not counted.
    * A stage's output lives from the end of its F until it has been received; on the receiving
      rank it takes memory from the moment it leaves until F takes it over. Between stages of one
      rank, until the next stage's F starts.
    * A gradient likewise, but until the end of the I or B that uses it.
    * ``static_bytes`` are there all the time.

    At one moment, what is freed goes first.

    Raises:
        ParameterError: the costs do not fit the schedule's stages.
    """
    table = costs.table(schedule.placement)
    changes = sorted([*_kept(timeline, table), *_handed_on(schedule, timeline, table)])
    held = schedule.placement.sum_by_rank(table.static_bytes)
    levels: list[list[Level]] = [[] for _ in held]
    for change in changes:
        if change.bytes:
            held[change.rank] += change.bytes
            levels[change.rank].append(Level(change.time, held[change.rank], change.action))
    return tuple(map(tuple, levels))


def _leaves(timeline: Timeline) -> Iterator[tuple[int, Slot]]:
    for rank, slots in enumerate(timeline.ranks):
        for slot in slots:
            for leaf in slot.leaves:
                yield rank, leaf


def _kept(timeline: Timeline, table: Table) -> Iterator[_Change]:
    """What stages keep for their backward."""
    for rank, (action, start, end, _) in _leaves(timeline):
        stage, kind, _, _ = action
        if kind not in (Kind.F, Kind.B, Kind.I, Kind.W):
            continue
        full, kept = table.activation_bytes[stage], table.kept_bytes[stage]
        light = table.message_bytes[stage] if stage in table.recompute else full
        if kind is Kind.W:
            yield _Change(end, False, rank, -kept, action)
            continue
        before = 0 if kind is Kind.F else light
        after = {Kind.F: light, Kind.I: kept}.get(kind, 0)
        yield _Change(start, True, rank, full - before, action)
        yield _Change(end, False, rank, after - full, action)


def _handed_on(schedule: Schedule, timeline: Timeline, table: Table) -> Iterator[_Change]:
    """What is on its way between stages."""
    slots = {
        (leaf.action.kind in (Kind.B, Kind.I), leaf.action.stage, leaf.action.microbatch): leaf
        for _, leaf in _leaves(timeline)
        if leaf.action.kind in (Kind.F, Kind.B, Kind.I)
    }
    ranks = schedule.placement.ranks
    moved = {
        (t.action.kind is Kind.SEND_B, t.action.stage, t.action.microbatch): t
        for t in timeline.transfers
    }
    for (backward, stage, microbatch), slot in slots.items():
        user = slots.get((backward, stage + (-1 if backward else 1), microbatch))
        size = table.message_bytes[stage if backward else stage + 1] if user is not None else 0
        if user is None or not size:
            continue
        taken = user.end if backward else user.start
        message = moved.get((backward, stage, microbatch))
        rank, other = ranks[stage], ranks[user.action.stage]
        left = (taken, user.action) if message is None else (message.end, message.action)
        yield from _held(rank, size, (slot.end, slot.action), left)
        if message is not None:
            yield from _held(other, size, (message.start, message.action), (taken, user.action))


def _held(
    rank: int, size: float, begin: tuple[float, Action], end: tuple[float, Action]
) -> Iterator[_Change]:
    """Something a rank holds for a while. Nothing, if it is gone the moment it comes: what is freed
    at a moment goes before what comes."""
    if end[0] > begin[0]:
        yield _Change(begin[0], True, rank, size, begin[1])
        yield _Change(end[0], False, rank, -size, end[1])
