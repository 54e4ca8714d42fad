"""Every action in order: a column a rank, a row a step. Order only, no time."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fullbore.ir import KINDS, Action, Group, Kind, Schedule
from fullbore.view.blocks import shades_of
from fullbore.view.palette import DIM, PALETTE, WRONG, Canvas

MARK = " !"

Place = tuple[int | None, int | None]


def listing(
    schedule: Schedule, *, canvas: Canvas, reduce_grad: bool, wrong: Collection[Place] = ()
) -> list[str]:
    """Lines; ranks that do not fit beside each other follow below.

    Args:
        schedule: any form; need not be valid.
        canvas: how wide and how colourful.
        reduce_grad: show ``REDUCE_GRAD``; its step stays empty otherwise.
        wrong: the ``(rank, step)`` to mark.
    """
    shades = shades_of(schedule)
    columns = [
        _column(schedule, rank, shades, reduce_grad=reduce_grad, wrong=wrong)
        for rank in range(schedule.num_ranks)
    ]
    widths = [2 + max(len(text) for text, _ in column) for column in columns]
    num_rows = max(map(len, columns))
    margin = max(len("step"), len(str(num_rows))) + 2
    lines: list[str] = []
    for ranks in _groups(widths, canvas.width - margin if canvas.width else 0):
        lines += [""] if lines else []
        for row in range(num_rows):
            number = "step" if row == 0 else str(row - 1)
            line = canvas.paint(number, DIM) + " " * (margin - len(number))
            for rank in ranks:
                text, style = columns[rank][row] if row < len(columns[rank]) else ("", "")
                line += canvas.paint(text, style) + " " * (widths[rank] - len(text))
            lines.append(line.rstrip())
    return lines


def _column(
    schedule: Schedule,
    rank: int,
    shades: Mapping[int, int],
    *,
    reduce_grad: bool,
    wrong: Collection[Place],
) -> list[tuple[str, str]]:
    """Heading and actions of a rank, each with its style."""
    column = [(f"rank {rank}", DIM)]
    for step, action in enumerate(schedule.programs[rank]):
        if action.kind is Kind.REDUCE_GRAD and not reduce_grad:
            column.append(("", ""))
        elif (rank, step) in wrong:
            column.append((f"{action}{MARK}", WRONG))
        else:
            column.append((str(action), _style(action, shades)))
    while not column[-1][0]:
        column.pop()
    return column


def _style(action: Action, shades: Mapping[int, int]) -> str:
    """Computation stands out, sharding stands back."""
    group = KINDS[action.kind].group
    if group is Group.COMPUTE:
        return PALETTE[action.kind][shades.get(action.stage, 0)].block
    return DIM if group is Group.SHARDING else ""


def _groups(widths: list[int], room: int) -> list[list[int]]:
    """Ranks that fit beside each other; all of them if there is no limit."""
    groups: list[list[int]] = [[]]
    used = 0
    for rank, width in enumerate(widths):
        if room and used and used + width > room:
            groups.append([])
            used = 0
        groups[-1].append(rank)
        used += width
    return groups
