"""The timed grid as text: strips of time, each with a ruler and a row a rank."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import ceil
from typing import NamedTuple

from fullbore.view.blocks import LEGEND, Block, kinds_of
from fullbore.view.palette import DIM, PALETTE, Canvas

IDLE, LONGER, JOINED = "·", "─", "+"


class Cell(NamedTuple):
    """One unit of time of one rank: painted text, and the gap to the next unit."""

    text: str
    gap: str
    style: str


def strips(rows: list[list[Block]], *, gap: int, canvas: Canvas) -> list[str]:
    """Lines that show all rows over time; every strip has room for one unit of time at least.

    Args:
        rows: each rank's blocks, in order.
        gap: columns between the blocks, 1 or 0.
        canvas: how wide and how colourful.
    """
    end = max((row[-1].end for row in rows if row), default=0)
    unit = gap + max((len(block.label) for block in chain.from_iterable(rows)), default=1)
    labels = [f"rank {rank}" for rank in range(len(rows))]
    margin = max(len(labels[-1]), len("time")) + 2
    tick = next(k for k in _ticks() if k * unit > len(str(end)) + 1)
    room = max(1, (canvas.width - margin) // unit) if canvas.width else end
    length = _length_of_strip(end, room, tick)
    cells = [_cells(row, gap=gap, unit=unit, end=end, canvas=canvas) for row in rows]
    lines: list[str] = []
    for start in range(0, max(1, end), length):
        stop = min(start + length, end)
        lines += [""] if lines else []
        ruler = "".join(
            str(time).ljust(unit * (min(time + tick, stop) - time))
            for time in range(start, stop, tick)
        )
        lines.append(canvas.paint(f"{'time':{margin}}{ruler}".rstrip(), DIM))
        for label, row in zip(labels, cells, strict=True):
            drawn = "".join(
                canvas.paint(text, style) + between for text, between, style in row[start:stop]
            )
            lines.append(f"{label:{margin}}{drawn}".rstrip())
    return lines


def _length_of_strip(end: int, room: int, tick: int) -> int:
    """Strips of about one length, which start at a tick of the ruler where that leaves room."""
    if end <= room:
        return max(1, end)
    most = room - room % tick or room
    number = ceil(end / most)
    return min(most, ceil(end / number / tick) * tick)


def _ticks() -> Iterator[int]:
    scale = 1
    while True:
        yield from (scale, 2 * scale, 5 * scale)
        scale *= 10


def _cells(row: list[Block], *, gap: int, unit: int, end: int, canvas: Canvas) -> list[Cell]:
    """One cell a unit of time."""
    # On a coloured ground the length of a block shows without a line.
    fill = " " if canvas.color else LONGER
    cells = [Cell(IDLE, " " * (unit - 1), DIM)] * end
    for block in row:
        length, style = block.end - block.start, PALETTE[block.action.kind][block.shade].block
        label = block.label.ljust(unit - gap) if length == 1 else block.label
        text = label.ljust(unit * length - gap, fill)
        for k in range(length):
            cells[block.start + k] = Cell(text[k * unit : (k + 1) * unit], "", style)
        between = (JOINED if block.joined else " ") * gap
        cells[block.end - 1] = cells[block.end - 1]._replace(gap=between)
    return cells


def legend(rows: list[list[Block]], *, gap: int, canvas: Canvas) -> list[str]:
    """What letters, colours and marks mean."""
    blocks = list(chain.from_iterable(rows))
    items = []
    for kind in kinds_of(rows):
        letter, meaning = LEGEND[kind]
        swatch = f" {letter} " if canvas.color else letter
        painted = canvas.paint(swatch, PALETTE[kind][0].block)
        items.append((len(f"{swatch} {meaning}"), f"{painted} {meaning}"))
    notes = [f"{IDLE} idle"]
    if not gap and any(block.shade for block in blocks):
        notes.append("lower case: every second stage of a rank")
    if gap and any(block.joined for block in blocks):
        notes.append(f"a{JOINED}b one overlap")
    if gap and blocks:
        (stage, kind, microbatch, _), label = blocks[-1].action, blocks[-1].label
        notes.append(f"{label}: {LEGEND[kind][1]} of stage {stage}, microbatch {microbatch}")
    return _fold(items + [(len(note), note) for note in notes], canvas.width)


def _fold(items: list[tuple[int, str]], width: int) -> list[str]:
    """Items of a visible length, as many a line as fit."""
    lines, used = [""], 0
    for length, item in items:
        if used and width and used + 3 + length > width:
            lines, used = [*lines, ""], 0
        lines[-1] += ("   " if used else "") + item
        used += length + (3 if used else 0)
    return lines
