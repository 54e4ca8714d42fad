"""Says who waits for whom when no message comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fullbore.ir import KINDS, Group, Schedule
from fullbore.passes import ForwardOnly
from fullbore.runtime.transport.position import NOWHERE, Position

_STEP_BITS, _PLACE_BITS = 24, 24


class Mark(NamedTuple):
    """An action as a rank tells it to others.

    Attributes:
        rank: whose program it is in.
        place: twice its place among the actions that all ranks know of, plus 1 where it gathers or
            reduces for its rank alone and comes after the one at that place.
        step: its place in the program, which only its own rank is sure to know.
    """

    rank: int
    place: int
    step: int


def make_marks(schedule: Schedule, steps: Sequence[tuple[int, int]]) -> list[int]:
    """A number for each of these ``(rank, step)``."""
    places: dict[tuple[int, int], int] = {}
    for rank, program in enumerate(schedule.programs):
        place = -1
        for step, action in enumerate(program):
            alone = KINDS[action.kind].group is Group.SHARDING
            place += not alone
            places[rank, step] = max(0, 2 * place + alone)
    return [(rank << _PLACE_BITS | places[rank, step]) << _STEP_BITS | step for rank, step in steps]


def read_mark(mark: int) -> Mark:
    """What ``make_marks`` made it of."""
    rest, step = divmod(mark, 1 << _STEP_BITS)
    return Mark(*divmod(rest, 1 << _PLACE_BITS), step)


def schedule_of_run(schedule: Schedule, run: int) -> Schedule:
    """What is executed in a run of that number."""
    return schedule if run % 2 else ForwardOnly()(schedule)


def describe_stall(
    rank: int, own: Position, others: Mapping[int, Position], schedule: Schedule
) -> str:
    """Who waits for whom, from ``rank`` on: a chain that ends with whoever waits for nobody, or a
    cycle.

    Args:
        rank: that waits.
        own: where it is.
        others: where the others are, as far as known.
        schedule: of the pipeline.
    """
    positions = {**others, rank: own}
    text, seen = f"rank {rank}", [rank]
    while True:
        here = positions.get(seen[-1])
        text += " " + _state(here, own.run, schedule)
        if here is None or here.waits_for == NOWHERE:
            return text
        text += f" for rank {here.waits_for}"
        if here.waits_for in seen:
            return text + ": they wait for each other"
        seen.append(here.waits_for)
        text += ", which"


def _state(position: Position | None, run: int, schedule: Schedule) -> str:
    if position is None:
        return "has not made its pipeline, or does not answer"
    waits, trouble = position.waits_for != NOWHERE, position.trouble
    if position.mark == NOWHERE:
        where = "between two calls of step() or eval()"
    else:
        where = f"at {_action(position, schedule)}"
        if position.run // 2 != run // 2:
            where += f" of run {position.run}"
    if trouble:
        return f"is {where}, and {trouble}" + (" since it waits" if waits else "")
    if waits:
        return f"waits {where}"
    doing = "computing for" if position.mark != NOWHERE else "for"
    return f"is {where} ({doing} {position.seconds:.0f} s)"


def _action(position: Position, schedule: Schedule) -> str:
    mark = read_mark(position.mark)
    program = schedule_of_run(schedule, position.run).programs[mark.rank]
    known = [action for action in program if KINDS[action.kind].group is not Group.SHARDING]
    place, alone = divmod(mark.place, 2)
    return f"{known[place]}" if not alone else f"what follows {known[place]}"
