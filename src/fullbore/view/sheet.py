"""Where everything is in a figure, in pixels of 1/96 inch, and which labels fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from math import ceil
from typing import Any, NamedTuple

from fullbore.view.blocks import LEGEND
from fullbore.view.panel import Panel, Tile

NARROWEST, WIDEST = 960, 1920
_LETTERS = {"F": 0.58, "B": 0.69, "I": 0.3, "W": 0.99, "R": 0.7, "U": 0.74}  # DejaVu Sans, in em
_DIGIT = 0.64
_PIXELS_PER_POINT = 96 / 72
_HEAD, _FOOT = 52, 36  # title and caption above the lanes, the ruler below


class Colors(NamedTuple):
    """Of all that is no work."""

    ground: str
    text: str
    idle: str
    arrow: str
    memory: str


LIGHT = Colors("#ffffff", "#222222", "#e4e4e4", "#444444", "#9a9a9a")
DARK = Colors("#16181d", "#e6e6e6", "#33363d", "#c8c8c8", "#7f858f")


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """The measures of a figure.

    Attributes:
        colors: those of the ground.
        width: of the figure.
        ranks: the number of lanes of each panel.
        lane_height, gap, memory_height: of each lane; the last is 0 without a memory lane.
        depth: of all that a lane holds, in heights of a lane: more than 1 with sharding.
        font: of the labels, in points.
        numbers: labels are the number of the microbatch only.
        columns, rows: of the legend.
        pixels: of the shortest work, but for the shortest tenth of it.
    """

    colors: Colors
    width: float
    ranks: tuple[int, ...]
    lane_height: float
    gap: float
    memory_height: float
    depth: float
    font: float
    numbers: bool
    pixels: float
    columns: int
    rows: int

    left, right, small = 62.0, 92.0, 8.0

    @property
    def pitch(self) -> float:
        """From one lane to the next."""
        return self.lane_height * self.depth + self.memory_height + self.gap

    @property
    def height(self) -> float:
        """Of the figure."""
        return sum(map(self.height_of, self.ranks)) + 18 * self.rows + 6

    def height_of(self, ranks: int) -> float:
        """Of a panel with its title and ruler."""
        return _HEAD + ranks * self.pitch + _FOOT

    def box(self, number: int) -> tuple[float, float, float, float]:
        """The lanes of a panel as matplotlib's left, bottom, width and height, from 0 to 1."""
        above = [0.0, *accumulate(map(self.height_of, self.ranks))][number]
        lanes = self.ranks[number] * self.pitch
        bottom = self.height - above - _HEAD - lanes
        inner = self.width - self.left - self.right
        return (
            self.left / self.width,
            bottom / self.height,
            inner / self.width,
            lanes / self.height,
        )

    def lane(self, rank: int, part: float) -> float:
        """How far below the first lane's top a part of a lane's height is, from 0 to 1."""
        return rank * self.pitch + part * self.lane_height

    def memory(self, rank: int) -> tuple[float, float]:
        """Top and bottom of a rank's memory lane."""
        bottom = self.lane(rank + 1, 0) - self.gap
        return bottom - self.memory_height + 2, bottom

    @property
    def seam(self) -> float:
        """How wide the line between blocks is, in points: thin where blocks are."""
        return min(0.7, 0.06 * self.pixels)


def layout(
    panels: Sequence[Panel],
    rows: Sequence[list[list[Tile]]],
    *,
    legend: Sequence[str],
    colors: Colors,
    width: int | None,
    memory: bool,
) -> Sheet:
    """The measures that suit these panels."""
    everything = [tile for panel in rows for tile in chain.from_iterable(panel)]
    tiles = [tile for tile in everything if tile.top < 1]  # those that can have labels
    length = max(end - begin for begin, end in (panel.bounds for panel in panels))
    spent = Sheet.left + Sheet.right
    lengths = sorted(tile.end - tile.start for tile in tiles)
    short = lengths[len(lengths) // 10] if lengths else length
    if width is None:
        texts = _texts(tiles, panels[0], numbers=False)
        widest = max((_room(text, Sheet.small) for text in texts), default=1)
        wanted = spent + length / short * widest
        width = round(min(max(wanted, NARROWEST), WIDEST))
    pixels = (width - spent) / length
    most = max(panel.schedule.num_ranks for panel in panels)
    lane = 26.0 if most <= 8 else 20.0 if most <= 32 else 12.0
    font, numbers = _font(tiles, panels[0], pixels, lane)
    entries = [len(label) * _DIGIT * Sheet.small * _PIXELS_PER_POINT + 42 for label in legend]
    inner = width - Sheet.left
    one_row = sum(entries) <= inner
    columns = len(entries) if one_row else max(1, int(inner // max(entries)))
    return Sheet(
        colors=colors,
        width=width,
        ranks=tuple(panel.schedule.num_ranks for panel in panels),
        lane_height=lane,
        gap=6.0 if most <= 8 else 4.0,
        memory_height=lane * 0.7 if memory else 0.0,
        depth=max((1.0, *(tile.bottom for tile in everything))),
        font=font,
        numbers=numbers,
        pixels=pixels * short,
        columns=columns,
        rows=ceil(len(legend) / columns),
    )


def labels_of(tiles: Sequence[Tile], panel: Panel, *, sheet: Sheet, pixels: float) -> list[str]:
    """The label of each tile; empty where it does not fit."""
    texts = _texts(tiles, panel, numbers=sheet.numbers)
    return [
        text if _fits(text, tile, font=sheet.font, pixels=pixels, lane=sheet.lane_height) else ""
        for text, tile in zip(texts, tiles, strict=True)
    ]


def steps(levels: Sequence[tuple[float, float]], end: float) -> Iterator[tuple[float, float]]:
    """The corners of the line that levels draw over time."""
    held = levels[0][1]
    for time, after in levels:
        yield time, held
        held = after
        yield time, held
    yield end, held


def _texts(tiles: Sequence[Tile], panel: Panel, *, numbers: bool) -> list[str]:
    """All labels of one length: with stage and letter, or the microbatch alone."""
    numbered = panel.schedule.placement.shape != "linear"

    def text(stage: int, kind: Any, microbatch: int) -> str:
        number = "" if microbatch < 0 else str(microbatch)
        letter = LEGEND[kind][0] if kind in LEGEND else kind.name[0]
        return number or letter if numbers else f"{stage if numbered else ''}{letter}{number}"

    return [text(*tile.action[:3]) for tile in tiles]


def _room(text: str, font: float) -> float:
    """The pixels that a label takes, with a margin."""
    return sum(_LETTERS.get(letter, _DIGIT) for letter in text) * font * _PIXELS_PER_POINT + 4


def _fits(text: str, tile: Tile, *, font: float, pixels: float, lane: float) -> bool:
    high = (tile.bottom - tile.top) * lane >= font * _PIXELS_PER_POINT * 0.95
    return high and _room(text, font) <= (tile.end - tile.start) * pixels


def _font(tiles: Sequence[Tile], panel: Panel, pixels: float, lane: float) -> tuple[float, bool]:
    """The largest labels that fit on nine of ten tiles, and whether they are numbers only."""
    for font, numbers in ((8, False), (7, False), (8, True), (7, True), (6, True)):
        texts = _texts(tiles, panel, numbers=numbers)
        fitting = sum(
            _fits(text, tile, font=font, pixels=pixels, lane=lane)
            for text, tile in zip(texts, tiles, strict=True)
        )
        if fitting >= 0.9 * len(tiles):
            return font, numbers
    return 5.5, True
