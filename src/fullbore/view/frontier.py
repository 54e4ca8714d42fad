"""Memory against idle time: what was planned for several limits, and what no schedule can do."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fullbore.errors import ParameterError
from fullbore.ir import Kind
from fullbore.view.figure import FORMATS, saved, settings
from fullbore.view.palette import PALETTE
from fullbore.view.panel import printable
from fullbore.view.sheet import DARK, LIGHT, Colors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENDINGS = (".svg", ".png", ".html")
_WIDTH, _HEIGHT = 880, 520  # pixels of 1/96 inch
_LETTER, _LINE = 6.2, 13.0  # of a label, in pixels


class Spot(NamedTuple):
    """A schedule: what the fullest rank holds, its bubble rate (0 to 1), and what it is called."""

    memory: float
    bubble: float
    label: str


class Front(NamedTuple):
    """What to draw.

    Attributes:
        title: above it.
        plans: the best schedule for each limit, at the limit.
        bounds: the least bubble rate that any schedule could have, by limit.
        families: every family's.
        unit: what memory is in.
    """

    title: str
    plans: Sequence[Spot]
    bounds: Sequence[tuple[float, float]]
    families: Sequence[Spot]
    unit: str


def render_frontier(
    front: Front,
    format: str = "svg",  # noqa: A002 - what it is called everywhere
    *,
    dark: bool = False,
) -> bytes:
    """Bubble rate over memory: a step line of the best that is known, the area that no schedule
    reaches, and a mark for every family that takes no more than the largest limit.

    Args:
        front: what to draw.
        format: ``svg`` or ``png``.
        dark: for a dark ground.

    Raises:
        MissingExtra: matplotlib is not installed.
        ParameterError: the format is another one, or there is no plan.
    """
    if format not in FORMATS:
        raise ParameterError(f"pictures: the format is svg or png, got {format!r}")
    if not front.plans:
        raise ParameterError("frontier: there is no plan to draw")
    with settings():
        figure = _figure(front, DARK if dark else LIGHT)
        return saved(figure, format, printable(front.title))


def render_frontier_page(front: Front) -> str:
    """The picture as a page, light or dark as the reader prefers, with its numbers in a table.

    Raises:
        MissingExtra: matplotlib is not installed.
        ParameterError: there is no plan.
    """
    light, dark = (
        base64.b64encode(render_frontier(front, dark=dark)).decode() for dark in (False, True)
    )
    data = "data:image/svg+xml;base64,"
    rows = [
        *(
            ("planned", spot, bound)
            for spot, (_, bound) in zip(front.plans, front.bounds, strict=True)
        ),
        *(("family", spot, None) for spot in front.families),
    ]
    cells = "\n".join(
        f"<tr><td>{kind}<td>{escape(spot.label)}<td>{spot.memory:g}<td>{spot.bubble:.2%}<td>"
        f"{'' if bound is None else f'{bound:.2%}'}"
        for kind, spot, bound in rows
    )
    title = escape(printable(front.title))
    return f"""<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<style>
body {{font: 14px/1.5 system-ui, sans-serif; max-width: {_WIDTH}px; margin: 1em auto;
  background: {LIGHT.ground}; color: {LIGHT.text}}}
img {{max-width: 100%}}
td, th {{text-align: left; padding: 0 1.2em 0 0}}
@media (prefers-color-scheme: dark) {{body {{background: {DARK.ground}; color: {DARK.text}}}}}
</style>
<picture><source media="(prefers-color-scheme: dark)" srcset="{data}{dark}">
<img alt="{title}" src="{data}{light}"></picture>
<table><tr><th><th>schedule<th>memory, {escape(front.unit)}<th>bubble<th>least possible
{cells}
</table></html>
"""


def save_frontier(front: Front, path: str | Path) -> None:
    """Write the picture: the file ends in ``.svg``, ``.png`` or ``.html``.

    Raises:
        MissingExtra: matplotlib is not installed.
        ParameterError: the ending is another one.
        OSError: the file cannot be written.
    """
    writers: Mapping[str, Callable[[], bytes]] = {
        ".svg": lambda: render_frontier(front, "svg"),
        ".png": lambda: render_frontier(front, "png"),
        ".html": lambda: render_frontier_page(front).encode(),
    }
    Path(path).write_bytes(writers[frontier_ending(path)]())


def frontier_ending(path: str | Path) -> str:
    """The ending of a file that the picture is written to.

    Raises:
        ParameterError: it is none of them.
    """
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise ParameterError(f"{path}: a frontier's picture ends in {', '.join(ENDINGS)}")
    return ending


def _figure(front: Front, colors: Colors) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    dark = colors is DARK
    planned, other = (
        PALETTE[kind][int(dark)].web_back for kind in (Kind.F, Kind.B)
    )  # the blue and the orange of all pictures; on dark the paler ones
    figure = Figure(figsize=(_WIDTH / 96, _HEIGHT / 96), facecolor=colors.ground)
    axes = figure.add_axes((0.085, 0.115, 0.885, 0.765))
    axes.set_facecolor("none")
    largest = max(spot.memory for spot in front.plans)
    low = min(spot.memory for spot in (*front.plans, *front.families))
    shown = [spot for spot in front.families if spot.memory <= largest * (1 + 1e-9)]
    margin = 0.06 * (largest - low) or 0.1 * largest
    axes.set_xlim(low - margin, largest + margin)
    # A family that idles far more than all others would squeeze them.
    worst = max(spot.bubble for spot in front.plans)
    axes.set_ylim(0, 1.12 * max([worst, *(s.bubble for s in shown if s.bubble <= 2 * worst)]))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _lines(axes, front, colors, planned=planned)
    style: dict[str, Any] = {"linewidths": 0.8, "edgecolors": colors.ground, "clip_on": False}
    inside = [spot for spot in shown if spot.bubble <= axes.get_ylim()[1]]
    new = [
        s for s in inside if (s.label, s.bubble) not in {(p.label, p.bubble) for p in front.plans}
    ]
    for spots, color, marker, size, zorder in (
        (inside, other, "D", 30, 4),
        (front.plans, planned, "o", 52, 5),
    ):
        if spots:
            xs, ys = [s.memory for s in spots], [s.bubble for s in spots]
            axes.scatter(xs, ys, s=size, marker=marker, color=color, zorder=zorder, **style)
    _labels(axes, [*front.plans, *new], front, colors)
    _frame(axes, front, colors, hidden=len(front.families) - len(inside))
    _legend(figure, colors, planned=planned, other=other)
    return figure


def _lines(axes: Axes, front: Front, colors: Colors, *, planned: str) -> None:
    """Steps: a schedule serves every larger limit, a bound every smaller one."""
    left, right = axes.get_xlim()
    memory, bubble, _ = zip(*_best(front), strict=True)
    axes.step([*memory, right], [*bubble, bubble[-1]], where="post", color=planned, zorder=3)
    limits, bounds = zip(*front.bounds, strict=True)
    xs, ys = [left, *limits, right], [bounds[0], *bounds, bounds[-1]]
    axes.fill_between(xs, ys, step="pre", color=colors.idle, linewidth=0, zorder=1)
    axes.step(xs, ys, where="pre", color=colors.arrow, linewidth=0.9, zorder=2)


def _best(front: Front) -> list[Spot]:
    """From the least memory on, what idles less than all that take less."""
    found: list[Spot] = []
    largest = max(spot.memory for spot in front.plans)
    for spot in sorted((*front.plans, *front.families)):
        if spot.memory <= largest * (1 + 1e-9) and (not found or spot.bubble < found[-1].bubble):
            found.append(spot)
    return found


def _labels(axes: Axes, spots: Sequence[Spot], front: Front, colors: Colors) -> None:
    """Names beside the marks, where there is room; those that come first have it first."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    wide, tall = 0.885 * _WIDTH, 0.765 * _HEIGHT

    def place(memory: float, bubble: float) -> tuple[float, float]:
        return (memory - left) / (right - left) * wide, (bubble - low) / (high - low) * tall

    marks = [place(spot.memory, spot.bubble) for spot in spots]
    # No name on a mark or a line, nor where no schedule can be.
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in marks]
    falls = [place(spot.memory, spot.bubble) for spot in _best(front)]
    taken += [(x, y, x, above) for (_, above), (x, y) in pairwise(falls)]
    before = 0.0
    for x, y in (place(*bound) for bound in front.bounds):
        taken.append((before, 0.0, x, y))
        before = x
    for spot, (x, y) in zip(spots, marks, strict=True):
        width = _LETTER * len(spot.label)
        for dx, dy in ((8, 9), (8, -9), (-8 - width, 9), (-8 - width, -9), (9, 0), (-9 - width, 0)):
            box = (x + dx, y + dy - _LINE / 2, x + dx + width, y + dy + _LINE / 2)
            inside = min(box) >= 0 and box[2] <= wide and box[3] <= tall
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                axes.annotate(
                    spot.label,
                    (spot.memory, spot.bubble),
                    (dx * 0.75, dy * 0.75),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                    color=colors.text,
                    zorder=6,
                )
                break


def _overlap(
    one: tuple[float, float, float, float], other: tuple[float, float, float, float]
) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _frame(axes: Axes, front: Front, colors: Colors, *, hidden: int) -> None:
    style: dict[str, Any] = {"fontsize": 8, "color": colors.text}
    axes.set_xlabel(f"memory of a rank ({front.unit})", **style)
    axes.set_ylabel("bubble", **style)
    axes.tick_params(colors=colors.text, labelsize=8)
    axes.grid(visible=True, axis="y", color=colors.idle, linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(colors.text)
    place: dict[str, Any] = {"transform": axes.transAxes, "color": colors.text}
    axes.text(0, 1.105, printable(front.title), fontsize=11, weight="bold", **place)
    if hidden:
        text = f"{hidden} more families need more memory or idle longer"
        if hidden == 1:
            text = "1 more family needs more memory or idles longer"
        axes.text(1, 1.045, text, fontsize=8, ha="right", va="center", **place)


def _legend(figure: Figure, colors: Colors, *, planned: str, other: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure.legend(
        handles=[
            Line2D([], [], color=planned, marker="o", label="best found"),
            Line2D([], [], color=other, marker="D", linestyle="", label="families"),
            Patch(facecolor=colors.idle, edgecolor=colors.arrow, label="no schedule can be here"),
        ],
        loc="upper left",
        bbox_to_anchor=(0.078, 0.945),
        ncols=3,
        frameon=False,
        fontsize=8,
        labelcolor=colors.text,
        borderaxespad=0,
    )
