"""What a schedule does around one of its actions: where something failed, say."""

from __future__ import annotations

from fullbore.errors import InvalidSchedule
from fullbore.ir import Schedule
from fullbore.sim import unit_timeline

MARK = " <<"


def render_around(schedule: Schedule, rank: int, step: int, *, steps: int = 5) -> str:
    """The actions before and after one, as text: a column a rank, a row a step.

    The other ranks' columns are shifted so that what runs at the same time, by
    :func:`fullbore.sim.unit_timeline`, is in the row of the action, which is marked.

    Args:
        schedule: any form; of one that cannot run, nothing is shifted.
        rank, step: the action is the ``step``-th of the rank's program, from 0.
        steps: how many rows to show before and after.
    """
    middles = _same_time(schedule, rank, step)
    columns = []
    for other, program in enumerate(schedule.programs):
        column = [f"rank {other}"]
        for at in range(middles[other] - steps, middles[other] + steps + 1):
            text = str(program[at]) if 0 <= at < len(program) else ""
            column.append(text + MARK if (other, at) == (rank, step) else text)
        columns.append(column)
    widths = [2 + max(map(len, column)) for column in columns]
    rows = zip(*columns, strict=True)
    lines = (
        "".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join(line for line in lines if line)


def _same_time(schedule: Schedule, rank: int, step: int) -> list[int]:
    """Each rank's step at the time of the action: the first that is not over then."""
    try:
        times = unit_timeline(schedule).ranks
    except InvalidSchedule:
        return [step] * schedule.num_ranks
    begin = times[rank][step].start
    found = [
        next((i for i, slot in enumerate(slots) if slot.end > begin), len(slots) - 1)
        for slots in times
    ]
    found[rank] = step
    return found
