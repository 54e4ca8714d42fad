"""Timelines as SVG and PNG, for papers and slides. Drawn with matplotlib, without a display."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from fullbore.errors import MissingExtra, ParameterError
from fullbore.ir import Kind
from fullbore.view.blocks import LEGEND
from fullbore.view.palette import PALETTE, Paint
from fullbore.view.panel import (
    Panel,
    Tile,
    amount,
    caption,
    check_panels,
    levels_of,
    printable,
    tiles_of,
)
from fullbore.view.sheet import DARK, LIGHT, Colors, Sheet, labels_of, layout, steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "png")
MOST_ARROWS = 160
"""More messages than these are only drawn where they are asked for."""

_DOTS = {"svg": 72, "png": 192}
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: to search, to read aloud, to restyle
    "svg.hashsalt": "fullbore",  # the same picture gives the same file
    "font.family": ["DejaVu Sans"],
    "path.simplify": False,
    "text.parse_math": False,  # a dollar sign in a title is a dollar sign
}
_FONTS = b"'DejaVu Sans', Verdana, sans-serif"


def render_figure(
    panels: Sequence[Panel],
    format: str = "svg",  # noqa: A002 - what it is called everywhere
    *,
    dark: bool = False,
    width: int | None = None,
    memory: bool = False,
    messages: bool | None = None,
) -> bytes:
    """Timelines below each other, on one scale of time.

    A lane a rank: blocks are work, in a colour a kind and two shades for the stages of a rank;
    what stays grey is idle. Blocks have labels where these fit.

    Args:
        panels: one to four.
        format: ``svg`` or ``png``.
        dark: for a dark ground.
        width: in pixels of 1/96 inch, 320 or more; a PNG has two dots a pixel. By default what the
            labels need, from 960 to 1920.
        memory: draw what each rank holds under its lane.
        messages: draw an arrow a message; by default if there are at most 160 of them, and no
            memory lane is in their way.

    Raises:
        MissingExtra: matplotlib is not installed.
        ParameterError: an argument makes no sense.
    """
    if format not in FORMATS:
        raise ParameterError(f"pictures: the format is svg or png, got {format!r}")
    if width is not None and width < 320:
        raise ParameterError(f"pictures: the width must be 320 pixels or more, got {width}")
    check_panels(panels, most=4)
    if memory and not any(panel.memory for panel in panels):
        raise ParameterError("pictures: no panel says what memory its ranks hold")
    with settings():
        figure = _figure(panels, DARK if dark else LIGHT, width, memory=memory, messages=messages)
        return saved(figure, format, "; ".join(printable(panel.title) for panel in panels))


@contextmanager
def settings() -> Iterator[None]:
    """Matplotlib's own settings, whatever the user's figures look like."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtra(
            "SVG and PNG pictures need matplotlib: pip install 'fullbore[pictures]'. HTML pages "
            "and traces need nothing"
        ) from error
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def saved(figure: Figure, format: str, title: str) -> bytes:  # noqa: A002
    """The figure as the content of a file, the same every time."""
    buffer = io.BytesIO()
    # Nothing that differs from day to day, and a title for those who cannot see the picture.
    metadata = {"Date": None, "Title": title}
    if format == "png":
        latin = title.encode("latin-1", "replace").decode("latin-1")
        metadata = {"Software": None, "Title": latin}
    with warnings.catch_warnings():
        # A title may hold what the font doesn't; whoever opens an SVG may well have it.
        warnings.filterwarnings("ignore", r"Glyph \d+")
        ground = figure.get_facecolor()
        figure.savefig(
            buffer, format=format, dpi=_DOTS[format], facecolor=ground, metadata=metadata
        )
    return _smaller(buffer.getvalue()) if format == "svg" else buffer.getvalue()


def _smaller(svg: bytes) -> bytes:
    """Without what no reader needs, and with a font for readers that lack matplotlib's."""
    for found, put in (
        (rb"(?s)<!--.*?-->", b""),
        (rb"\n\s*", b"\n"),
        (rb'(<text [^>]*?) transform="(translate\([-.\d ]+\) )?rotate\(-0[-.\d ]*\)"', rb"\1"),
        (rb"(<text [^>]*?); font-family: 'DejaVu Sans'", rb"\1"),
        (rb"(<text [^>]*?)'DejaVu Sans'", rb"\1" + _FONTS),
        (rb'<g id="text_\d+">\n(<text .*</text>)\n</g>', rb"\1"),
        (rb"</style>", b"text{font-family: " + _FONTS + b"}</style>"),
    ):
        svg = re.sub(found, put, svg)
    # A hundredth of a point is less than anyone sees.
    return re.sub(rb"<[^>]*>", lambda tag: re.sub(rb"(\.\d\d)\d+", rb"\1", tag[0]), svg)


def _figure(
    panels: Sequence[Panel],
    colors: Colors,
    width: int | None,
    *,
    memory: bool,
    messages: bool | None,
) -> Figure:
    from matplotlib.figure import Figure

    tiles = [tiles_of(panel) for panel in panels]
    legend = _entries([*chain.from_iterable(chain(*tiles))], colors, memory=memory)
    labels = [label for _, label in legend]
    sheet = layout(panels, tiles, legend=labels, colors=colors, width=width, memory=memory)
    figure = Figure(figsize=(sheet.width / 96, sheet.height / 96), facecolor=colors.ground)
    length = max(end - begin for begin, end in (panel.bounds for panel in panels))
    for number, (panel, rows) in enumerate(zip(panels, tiles, strict=True)):
        axes = figure.add_axes(sheet.box(number))
        axes.set_facecolor("none")
        axes.set_xlim(0, length)
        axes.set_ylim(panel.schedule.num_ranks * sheet.pitch, 0)
        _lanes(axes, panel, rows, sheet)
        _labels(axes, panel, rows, sheet)
        few = len(panel.timeline.transfers) <= MOST_ARROWS and not sheet.memory_height
        if few if messages is None else messages:
            _arrows(axes, panel, sheet)
        if sheet.memory_height and panel.memory:
            _memory(axes, panel, sheet)
        _frame(axes, panel, sheet)
    _legend(figure, legend, sheet)
    return figure


def _paint(tile: Tile, sheet: Sheet) -> Paint:
    return paint_of(tile.action.kind, tile.shade, dark=sheet.colors is DARK)


def paint_of(kind: Kind, shade: int, *, dark: bool) -> Paint:
    """The colours of a kind; on a dark ground the paler shade comes first."""
    shades = PALETTE.get(kind, PALETTE[Kind.REDUCE_GRAD])
    return shades[shade ^ dark]


def _lanes(axes: Axes, panel: Panel, rows: list[list[Tile]], sheet: Sheet) -> None:
    from matplotlib.collections import PolyCollection

    begin, end = panel.bounds
    lanes = [
        _rectangle(0, end - begin, sheet.lane(rank, 0), sheet.lane(rank, 1))
        for rank in range(len(rows))
    ]
    axes.add_collection(PolyCollection(lanes, facecolors=sheet.colors.idle, zorder=1))
    flat = [(rank, tile) for rank, row in enumerate(rows) for tile in row]
    boxes = [
        _rectangle(
            tile.start - begin,
            tile.end - begin,
            sheet.lane(rank, tile.top),
            sheet.lane(rank, tile.bottom),
        )
        for rank, tile in flat
    ]
    fills = [_paint(tile, sheet).web_back for _, tile in flat]
    axes.add_collection(
        PolyCollection(
            boxes,
            facecolors=fills or "none",
            edgecolors=sheet.colors.ground,
            linewidths=sheet.seam,
            clip_on=False,
            zorder=3,
        )
    )


def _labels(axes: Axes, panel: Panel, rows: list[list[Tile]], sheet: Sheet) -> None:
    begin, _ = panel.bounds
    low, high = axes.get_xlim()
    pixels = (sheet.width - sheet.left - sheet.right) / (high - low)
    for rank, row in enumerate(rows):
        labels = labels_of(row, panel, sheet=sheet, pixels=pixels)
        for tile, text in zip(row, labels, strict=True):
            if text:
                axes.text(
                    (tile.start + tile.end) / 2 - begin,
                    sheet.lane(rank, (tile.top + tile.bottom) / 2),
                    text,
                    color=_paint(tile, sheet).web_text,
                    fontsize=sheet.font,
                    ha="center",
                    va="center_baseline",
                    zorder=4,
                )


def _rectangle(left: float, right: float, top: float, bottom: float) -> list[tuple[float, float]]:
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _arrows(axes: Axes, panel: Panel, sheet: Sheet) -> None:
    """From the sender's lane to the receiver's, below the blocks of the lanes in between."""
    from matplotlib.collections import LineCollection

    begin, _ = panel.bounds
    lines = []
    heads: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for transfer in panel.timeline.transfers:
        sender, receiver = transfer.edge
        down = receiver > sender
        tip = (transfer.end - begin, sheet.lane(receiver, 0 if down else 1))
        lines.append([(transfer.start - begin, sheet.lane(sender, 1 if down else 0)), tip])
        heads[down].append(tip)
    style: dict[str, Any] = {"colors": sheet.colors.arrow, "linewidths": 0.6, "zorder": 2}
    axes.add_collection(LineCollection(lines, **style))
    for down, tips in heads.items():
        if tips:
            xs, ys = zip(*tips, strict=True)
            axes.scatter(
                xs,
                [y - 1.6 if down else y + 1.6 for y in ys],
                s=5,
                marker="v" if down else "^",
                color=sheet.colors.arrow,
                linewidths=0,
                zorder=5,
            )


def _memory(axes: Axes, panel: Panel, sheet: Sheet) -> None:
    from matplotlib.collections import PolyCollection

    begin, end = panel.bounds
    lanes = [levels_of(panel, rank) for rank in range(panel.schedule.num_ranks)]
    most = max(held for levels in lanes for _, held in levels) or 1
    shapes = []
    for rank, levels in enumerate(lanes):
        top, bottom = sheet.memory(rank)
        points = [
            (time - begin, bottom - (bottom - top) * held / most)
            for time, held in steps(levels, end)
        ]
        shapes.append([(0, bottom), *points, (end - begin, bottom)])
    axes.add_collection(PolyCollection(shapes, facecolors=sheet.colors.memory, zorder=2))


def _frame(axes: Axes, panel: Panel, sheet: Sheet) -> None:
    """Title, ruler, the names of the lanes, and how idle each of them is."""
    from matplotlib.ticker import MaxNLocator

    colors, ranks = sheet.colors, range(panel.schedule.num_ranks)
    middles = [sheet.lane(rank, 0.5) for rank in ranks]
    axes.set_yticks(middles, [f"rank {rank}" for rank in ranks], fontsize=sheet.small)
    axes.xaxis.set_major_locator(MaxNLocator(10 if sheet.width < 1200 else 16, steps=[1, 2, 5, 10]))
    axes.tick_params(colors=colors.text, labelsize=sheet.small, length=3)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(
        f"time ({panel.unit})" if panel.unit else "time",
        fontsize=sheet.small,
        color=colors.text,
        labelpad=2,
    )
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(colors.text)
    axes.set_axisbelow(True)
    style: dict[str, Any] = {"color": colors.text, "clip_on": False}
    across = axes.get_yaxis_transform()
    makespan = panel.timeline.makespan or 1
    for rank, middle in enumerate(middles):
        idle = f"{panel.timeline.idle[rank] / makespan:.0%} idle"
        axes.text(1.006, middle, idle, transform=across, fontsize=sheet.small, va="center", **style)
        if sheet.memory_height and panel.memory:
            most = max(held for _, held in levels_of(panel, rank))
            peak = amount(most, panel.memory_unit).removesuffix(" of a microbatch")
            height = sum(sheet.memory(rank)) / 2
            axes.text(
                1.006,
                height,
                peak,
                transform=across,
                fontsize=sheet.small - 1,
                va="center",
                **style,
            )
    title, below = printable(panel.title), caption(panel)
    axes.text(0, -26, title, fontsize=11, weight="bold", **style)
    axes.text(0, -9, below, fontsize=sheet.small, **style)


def _legend(figure: Figure, entries: Sequence[tuple[str, str]], sheet: Sheet) -> None:
    from matplotlib.patches import Patch

    figure.legend(
        handles=[Patch(facecolor=color, label=label) for color, label in entries],
        loc="lower left",
        bbox_to_anchor=(sheet.left / sheet.width - 0.004, 4 / sheet.height),
        ncols=sheet.columns,
        frameon=False,
        fontsize=sheet.small,
        labelcolor=sheet.colors.text,
        handlelength=1.2,
        handleheight=0.9,
        columnspacing=1.4,
        borderaxespad=0,
        borderpad=0,
    )


def _entries(tiles: Sequence[Tile], colors: Colors, *, memory: bool) -> list[tuple[str, str]]:
    """Colour and label of everything in the legend."""
    dark = colors is DARK
    kinds = sorted({tile.action.kind for tile in tiles})
    found = [(paint_of(kind, 0, dark=dark).web_back, _meaning(kind)) for kind in kinds]
    found.append((colors.idle, "idle"))
    if memory:
        found.append((colors.memory, "memory, peak at the right"))
    if any(tile.shade for tile in tiles):
        stages = "darker: a rank's second stage" if dark else "paler: a rank's second stage"
        found.append(("none", stages))
    return found


def _meaning(kind: Kind) -> str:
    letter, meaning = LEGEND.get(kind, ("", kind.name.lower()))
    return f"{letter} {meaning}".strip()
