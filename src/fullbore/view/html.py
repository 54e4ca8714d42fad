"""The grid for notebooks: one self-contained table, without scripts."""

from __future__ import annotations

from html import escape
from itertools import zip_longest

from fullbore.errors import InvalidSchedule
from fullbore.ir import Form, Schedule
from fullbore.sim import UNIT_COSTS, unit_timeline
from fullbore.view.blocks import LEGEND, Block, count, kinds_of, rows_of_blocks, summary, title
from fullbore.view.palette import PALETTE, Paint

MOST_CELLS = 100_000

STYLE = """<style>
.fullbore {font: 12px/1.5 ui-monospace, Menlo, Consolas, monospace; overflow-x: auto}
.fullbore table {border-collapse: separate; border-spacing: 1px; margin: 4px 0; width: auto}
.fullbore td, .fullbore th {padding: 0 4px; text-align: left; white-space: nowrap; min-width: 1em;
  font-weight: normal; border: 0; color: inherit; background: none}
.fullbore td.idle {background: #8882}
.fullbore td.wrong {outline: 2px solid #d00}
.fullbore span {padding: 0 4px; margin-right: 4px}
</style>"""


def render_html(schedule: Schedule) -> str:
    """The schedule as a piece of HTML: over time if it holds computation only, as a list of all
    actions if it is lowered or cannot run. One that takes more than 100,000 cells is only named.
    """
    head = [f"<b>{escape(title(schedule))}</b>"]
    too_large = f"<div>{count(schedule.num_actions, 'action')} are too many to show here.</div>"
    if schedule.num_ranks * max(map(len, schedule.programs)) > MOST_CELLS:
        return _page([*head, too_large])
    try:
        timeline = unit_timeline(schedule)
    except InvalidSchedule as error:
        head.append("<div>It cannot run, so its order is shown without times:</div>")
        head += [f"<div>{escape(line)}</div>" for line in str(error).splitlines()[1:]]
        wrong = {(finding.rank, finding.step) for finding in error.findings}
        return _page([*head, _listing(schedule, wrong)])
    rows = rows_of_blocks(schedule, timeline)
    foot = f"<div>{escape(summary(timeline, UNIT_COSTS, kinds_of(rows)))}</div>"
    if schedule.form is Form.LOWERED:
        return _page([*head, _listing(schedule, set()), foot])
    if schedule.num_ranks * timeline.makespan > MOST_CELLS:
        return _page([*head, too_large, foot])
    return _page([*head, _timed(rows), _legend(rows), foot])


def _page(parts: list[str]) -> str:
    return "\n".join([f'<div class="fullbore">{STYLE}', *parts, "</div>"])


def _colors(paint: Paint) -> str:
    return f'style="background:{paint.web_back};color:{paint.web_text}"'


def _timed(rows: list[list[Block]]) -> str:
    end = max((row[-1].end for row in rows if row), default=0)
    lines = ["<table>"]
    for rank, row in enumerate(rows):
        cells, now = [f"<th>rank {rank}</th>"], 0
        for block in row:
            cells += ['<td class="idle"></td>'] * (block.start - now)
            colors = _colors(PALETTE[block.action.kind][block.shade])
            tip = f"{block.action}, {block.start} to {block.end}"
            cells.append(
                f'<td colspan="{block.end - block.start}" {colors} title="{escape(tip)}">'
                f"{escape(block.label)}</td>"
            )
            now = block.end
        cells += ['<td class="idle"></td>'] * (end - now)
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</table>"])


def _legend(rows: list[list[Block]]) -> str:
    items = []
    for kind in kinds_of(rows):
        letter, meaning = LEGEND[kind]
        items.append(f"<span {_colors(PALETTE[kind][0])}>{letter}</span>{meaning} ")
    return f"<div>{' '.join(items)}</div>"


def _listing(schedule: Schedule, wrong: set[tuple[int | None, int | None]]) -> str:
    heads = "".join(f"<th>rank {rank}</th>" for rank in range(schedule.num_ranks))
    lines = ["<table>", f"<tr><th>step</th>{heads}</tr>"]
    for step, actions in enumerate(zip_longest(*schedule.programs)):
        cells = []
        for rank, action in enumerate(actions):
            mark = ' class="wrong"' if (rank, step) in wrong else ""
            cells.append(f"<td{mark}>{'' if action is None else escape(str(action))}</td>")
        lines.append(f"<tr><th>{step}</th>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</table>"])
