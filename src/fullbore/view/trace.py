"""A timeline as a trace that Perfetto (ui.perfetto.dev) and ``chrome://tracing`` open.

The format is Chrome's Trace Event Format, its JSON object form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fullbore.ir import KINDS, Group
from fullbore.sim import Causes, Slot
from fullbore.view.panel import Panel, check_panels, levels_of, printable

Event = dict[str, Any]

COMPUTE, SHARDING = 0, 1
_FIRST_LINK = 2
_TRACKS = MappingProxyType({Group.COMPUTE: COMPUTE, Group.SHARDING: SHARDING})

MICROSECONDS: Mapping[str, float] = MappingProxyType({"us": 1, "ms": 1e3, "s": 1e6})
"""Of each unit of time."""


def render_trace(panel: Panel) -> str:
    """The trace as JSON text.

    A process a rank, with a track for its computation (category ``compute``; an overlap's parts
    lie within a slice of category ``overlap``, or are one slice if they run as one block), one for
    sharding, and one for its messages to each other rank (more where several are on their way at
    once). Arrows lead from a message to the work that uses it. A counter shows the memory.

    Args:
        panel: what to write, simulated or measured. Times in another unit than ``us``, ``ms`` or
            ``s`` are shown as milliseconds.

    Raises:
        ParameterError: the panel does not fit its schedule.
    """
    check_panels([panel], most=1)
    events = [*_names(panel), *_work(panel), *_messages(panel), *_memory(panel)]
    scale = MICROSECONDS.get(panel.unit, MICROSECONDS["ms"])
    for event in events:
        for field in ("ts", "dur"):
            if field in event:
                event[field] *= scale
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"title": printable(panel.title), "unit": panel.unit},
        "traceEvents": events,
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def _named(rank: int, what: str, value: object, track: int | None = None) -> Event:
    field = "sort_index" if what.endswith("index") else "name"
    where = {} if track is None else {"tid": track}
    return {"ph": "M", "name": what, "pid": rank, **where, "args": {field: value}}


def _names(panel: Panel) -> Iterator[Event]:
    placement = panel.schedule.placement
    for rank, slots in enumerate(panel.timeline.ranks):
        stages = placement.stages_of(rank)
        yield _named(rank, "process_name", f"rank {rank}")
        yield _named(rank, "process_labels", f"stages {', '.join(map(str, stages))}")
        yield _named(rank, "process_sort_index", rank)
        yield _named(rank, "thread_name", "compute", COMPUTE)
        yield _named(rank, "thread_sort_index", COMPUTE, COMPUTE)
        if any(KINDS[slot.action.kind].group is Group.SHARDING for slot in slots):
            yield _named(rank, "thread_name", "sharding", SHARDING)
            yield _named(rank, "thread_sort_index", SHARDING, SHARDING)


def _slice(slot: Slot, rank: int, track: int, category: str) -> Event:
    action = slot.action
    facts: dict[str, object] = {"meaning": KINDS[action.kind].meaning}
    if action.parts:
        facts["parts"] = [str(part) for part in action.parts]
    else:
        facts["stage"] = action.stage
    if action.microbatch >= 0:
        facts["microbatch"] = action.microbatch
    where = {"ph": "X", "name": str(action), "cat": category, "pid": rank, "tid": track}
    return {**where, "ts": slot.start, "dur": slot.end - slot.start, "args": facts}


def _work(panel: Panel) -> Iterator[Event]:
    for rank, slots in enumerate(panel.timeline.ranks):
        for slot in slots:
            track = _TRACKS.get(KINDS[slot.action.kind].group)
            if track is None:
                continue
            if slot.pieces != (slot,):
                yield _slice(slot, rank, track, "overlap")
            category = "compute" if track == COMPUTE else "sharding"
            for piece in slot.pieces:
                yield _slice(piece, rank, track, category)


def _messages(panel: Panel) -> Iterator[Event]:
    transfers = panel.timeline.transfers
    tracks = _tracks_of_messages(panel)
    for (edge, place), track in sorted(tracks[1].items()):
        again = f" ({place + 1})" if place else ""
        yield _named(edge[0], "thread_name", f"link to rank {edge[1]}{again}", track)
        yield _named(edge[0], "thread_sort_index", track, track)
    for transfer, track in zip(transfers, tracks[0], strict=True):
        slot = Slot(transfer.action, transfer.start, transfer.end)
        event = _slice(slot, transfer.edge[0], track, "communication")
        event["args"] |= {"to rank": transfer.edge[1], "bytes": transfer.size}
        yield event
    yield from _arrows(panel, tracks[0])


def _tracks_of_messages(
    panel: Panel,
) -> tuple[list[int], Mapping[tuple[tuple[int, int], int], int]]:
    """The track of each message, and the tracks by link and place: slices of one track must not
    overlap, and a message may leave before the one ahead of it has arrived."""
    transfers = panel.timeline.transfers
    busy: dict[tuple[int, int], list[float]] = {}
    places = [0] * len(transfers)
    for number in sorted(range(len(transfers)), key=lambda n: (transfers[n].start, n)):
        transfer = transfers[number]
        ends = busy.setdefault(transfer.edge, [])
        free = (place for place, end in enumerate(ends) if end <= transfer.start)
        places[number] = place = next(free, len(ends))
        ends[place : place + 1] = [transfer.end]
    tracks: dict[tuple[tuple[int, int], int], int] = {}
    used: dict[int, int] = {}
    for edge in sorted(busy):
        for place in range(len(busy[edge])):
            used[edge[0]] = used.get(edge[0], _FIRST_LINK - 1) + 1
            tracks[edge, place] = used[edge[0]]
    found = [tracks[t.edge, place] for t, place in zip(transfers, places, strict=True)]
    return found, tracks


def _arrows(panel: Panel, tracks: Sequence[int]) -> Iterator[Event]:
    """From each message to the first work that uses it."""
    causes = Causes(panel.schedule, panel.timeline)
    first = len(causes.events) - len(tracks)
    drawn = set()
    for event in causes.events:
        for number in event.needs:
            if number < first or number in drawn:
                continue
            drawn.add(number)
            message = causes.events[number]
            same = {"name": "message", "cat": "message", "id": number - first}
            place = {"pid": message.rank, "tid": tracks[number - first], "ts": message.start}
            yield {"ph": "s", **same, **place}
            place = {"pid": event.rank, "tid": COMPUTE, "ts": event.start}
            yield {"ph": "f", "bp": "e", **same, **place}


def _memory(panel: Panel) -> Iterator[Event]:
    unit = "bytes" if panel.memory_unit == "B" else panel.memory_unit
    for rank in range(len(panel.memory)):
        counter = {"ph": "C", "name": "memory", "cat": "memory", "pid": rank}
        for time, held in levels_of(panel, rank):
            yield {**counter, "ts": time, "args": {unit: held}}
