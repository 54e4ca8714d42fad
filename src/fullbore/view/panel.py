"""What pictures show: one timeline of one schedule, simulated or measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from fullbore.errors import ParameterError
from fullbore.ir import KINDS, Action, Group, Schedule
from fullbore.sim import (
    Costs,
    Level,
    TableCosts,
    Timeline,
    UniformCosts,
    memory_over_time,
    simulate,
)
from fullbore.view import blocks

ONE_MICROBATCH = "activations of a microbatch"
_UNIT_COSTS = TableCosts(F=1, I=1, W=1)
_COUNTED = UniformCosts(F=0, I=0, W=0, activation_bytes=1)
STRIP = (1.08, 1.28)
_POWERS = ("B", "KiB", "MiB", "GiB", "TiB")


class Panel(NamedTuple):
    """A timeline to draw.

    Attributes:
        title: shown above it. Any text.
        schedule: what ran.
        timeline: when, simulated or measured. It may start at any time.
        unit: what times are in, such as ``ms``; may be empty.
        memory: what each rank holds over time, as :func:`fullbore.sim.memory_over_time` gives it;
            empty if it isn't known.
        memory_unit: what memory is counted in: ``B`` is bytes, and shown as KiB, MiB or GiB.
    """

    title: str
    schedule: Schedule
    timeline: Timeline
    unit: str = ""
    memory: tuple[tuple[Level, ...], ...] = ()
    memory_unit: str = "B"

    @property
    def bounds(self) -> tuple[float, float]:
        """The first start and the last end; 0 and 1 if there is nothing, or nothing takes time."""
        slots = list(chain.from_iterable(self.timeline.ranks))
        begin = min((slot.start for slot in slots), default=0)
        end = max((slot.end for slot in slots), default=0)
        return begin, end if end > begin else begin + 1


def simulated(schedule: Schedule, costs: Costs | None = None, *, title: str = "") -> Panel:
    """A panel of a schedule at some costs.

    Args:
        schedule: any form.
        costs: how long things take. By default one unit a forward, an input gradient and a weight
            gradient of one stage, as in :func:`fullbore.sim.unit_timeline`. Where they say nothing
            of bytes, memory is counted in what a rank's stages hold of one microbatch together.
        title: by default what the schedule is called and how large it is.

    Raises:
        InvalidSchedule: the schedule cannot run.
        ParameterError: the costs do not fit its stages.
    """
    used = _UNIT_COSTS if costs is None else costs
    timeline = simulate(schedule, used)
    memory, counted = memory_over_time(schedule, timeline, used), "B"
    if not any(memory):
        memory, counted = memory_over_time(schedule, timeline, _COUNTED), ONE_MICROBATCH
    unit = used.table(schedule.placement).unit
    return Panel(title or blocks.title(schedule), schedule, timeline, unit, memory, counted)


class Tile(NamedTuple):
    """A plain action as a rectangle: its time, and the part of the lane's height that it takes.

    Sharding goes on beside the computation, in a strip of its own: below 1. ``shade`` is 0 or 1 in
    turn for the stages of a rank.
    """

    action: Action
    start: float
    end: float
    top: float
    bottom: float
    shade: int


def tiles_of(panel: Panel) -> list[list[Tile]]:
    """Each rank's computation and sharding that takes time. Parts that run at once share the
    height of the lane."""
    shades = blocks.shades_of(panel.schedule)

    def tiles(rank: int) -> Iterator[Tile]:
        for slot in panel.timeline.ranks[rank]:
            for piece in slot.pieces:
                group, leaves = KINDS[piece.action.kind].group, piece.action.leaves
                if group is Group.COMMUNICATION or not piece.end > piece.start:
                    continue
                for place, leaf in enumerate(leaves):
                    top, bottom = place / len(leaves), (place + 1) / len(leaves)
                    if group is Group.SHARDING:
                        top, bottom = STRIP
                    shade = shades.get(leaf.stage, 0)
                    yield Tile(leaf, piece.start, piece.end, top, bottom, shade)

    return [list(tiles(rank)) for rank in range(panel.schedule.num_ranks)]


def levels_of(panel: Panel, rank: int) -> list[tuple[float, float]]:
    """What a rank holds from when on, once at each moment at which it changes. The first is the
    panel's start: what is left when a step is over was there before it."""
    settled = {level.time: level.bytes for level in panel.memory[rank]}
    begin, _ = panel.bounds
    return [*{begin: min(settled.values(), default=0), **settled}.items()]


def caption(panel: Panel) -> str:
    """One line: what the timeline amounts to."""
    timeline, count = panel.timeline, blocks.count
    messages = len(timeline.transfers)
    return (
        f"makespan {amount(timeline.makespan, panel.unit)}, "
        f"bubble {timeline.makespan_bubble_rate:.1%} of makespan, {count(messages, 'message')}"
    )


def amount(number: float, unit: str) -> str:
    """A number and its unit, bytes in the largest unit that leaves 1 or more."""
    if unit != "B":
        return f"{number:.4g} {unit}".rstrip()
    power = 0
    while number >= 1024 and power < len(_POWERS) - 1:
        number, power = number / 1024, power + 1
    return f"{number:.4g} {_POWERS[power]}"


def printable(text: str) -> str:
    """Text as it is, or escaped where it holds what could steer a reader: control characters and
    changes of direction."""
    return text if text.isprintable() else ascii(text)


def check_panels(panels: Sequence[Panel], *, most: int) -> None:
    """Refuse what cannot be drawn.

    Raises:
        ParameterError: there is no panel or there are too many, their units differ, or one does not
            fit its schedule.
    """
    if not 1 <= len(panels) <= most:
        raise ParameterError(f"pictures: give 1 to {most} panels, got {len(panels)}")
    units = {panel.unit for panel in panels}
    if len(units) > 1:
        raise ParameterError(
            f"pictures: panels share a scale of time, but these are in {sorted(units)}"
        )
    for panel in panels:
        ranks = panel.schedule.num_ranks
        if len(panel.timeline.ranks) != ranks:
            raise ParameterError(
                f"pictures: the timeline of {panel.title!r} has {len(panel.timeline.ranks)} ranks, "
                f"its schedule {ranks}"
            )
        if panel.memory and len(panel.memory) != ranks:
            raise ParameterError(
                f"pictures: the memory of {panel.title!r} has {len(panel.memory)} ranks, its "
                f"schedule {ranks}; give one list of levels a rank, or nothing"
            )
