"""The grid: a row a rank, a column a unit of time. The first thing to look at in a schedule."""

from __future__ import annotations

import shutil
import sys
from textwrap import wrap

from fullbore.errors import InvalidSchedule, ParameterError
from fullbore.ir import Form, Schedule
from fullbore.sim import UNIT_COSTS, unit_timeline
from fullbore.view.blocks import WITH_REDUCE_GRAD, Block, kinds_of, rows_of_blocks, summary, title
from fullbore.view.html import render_html
from fullbore.view.listing import listing
from fullbore.view.palette import BOLD, Canvas
from fullbore.view.strips import legend, strips

__all__ = ["render_grid", "render_html"]

NO_TERMINAL = (120, 24)


def render_grid(
    schedule: Schedule,
    *,
    color: bool = False,
    width: int | None = None,
    lowered: bool | None = None,
    compact: bool = False,
    reduce_grad: bool = True,
) -> str:
    """A picture of a schedule as text.

    Times are those of :func:`fullbore.sim.unit_timeline`; dots are idle time, and a line is every
    further unit of a longer action. A schedule that cannot run is listed without times.

    Args:
        schedule: any form; need not be valid.
        color: paint with ANSI escape sequences.
        width: fold what is wider than so many columns; 0 never folds. The terminal's width if not
            given, or 120 where there is no terminal.
        lowered: list every action in order, transfers and sharding too, instead of drawing the
            computation over time. By default what the form of the schedule suggests.
        compact: over time, one letter a unit without stage and microbatch, for large schedules.
        reduce_grad: show ``REDUCE_GRAD``: in the list, or over time as one unit.

    Raises:
        ParameterError: ``width`` is negative.
    """
    if width is None:
        width = shutil.get_terminal_size(NO_TERMINAL).columns
    if width < 0:
        raise ParameterError(f"grid: width must be 0 (never fold) or more, got {width}")
    if lowered is None:
        lowered = schedule.form is Form.LOWERED
    canvas = Canvas(color, width)
    head = "\n".join(canvas.paint(line, BOLD) for line in _folded(title(schedule), width))
    costs = WITH_REDUCE_GRAD if reduce_grad and not lowered else UNIT_COSTS
    try:
        timeline = unit_timeline(schedule, costs=costs)
    except InvalidSchedule as error:
        why = ["It cannot run, so its order is shown without times:", *str(error).splitlines()[1:]]
        wrong = {(finding.rank, finding.step) for finding in error.findings}
        table = listing(schedule, canvas=canvas, reduce_grad=reduce_grad, wrong=wrong)
        return "\n".join([head, *why, "", *table])
    rows = rows_of_blocks(schedule, timeline, compact=compact)
    if lowered:
        body = [*listing(schedule, canvas=canvas, reduce_grad=reduce_grad), ""]
    else:
        body = _over_time(rows, canvas, gap=0 if compact else 1)
    foot = _folded(summary(timeline, costs, kinds_of(rows)), width)
    return "\n".join([head, "", *body, *foot])


def _over_time(rows: list[list[Block]], canvas: Canvas, *, gap: int) -> list[str]:
    return [*strips(rows, gap=gap, canvas=canvas), "", *legend(rows, gap=gap, canvas=canvas)]


def _folded(text: str, width: int) -> list[str]:
    return wrap(text, width or sys.maxsize, break_long_words=False)
