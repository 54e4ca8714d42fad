"""Timelines as one interactive HTML file that needs nothing from elsewhere."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fullbore.ir import KINDS, Kind
from fullbore.sim import Causes
from fullbore.view.blocks import LEGEND, shades_of
from fullbore.view.palette import PALETTE
from fullbore.view.panel import Panel, caption, check_panels, levels_of, printable

_SCRIPTS = ("data.js", "draw.js", "details.js", "main.js")


def render_page(panels: Sequence[Panel], *, dark: bool | None = None) -> str:
    """One or two timelines as a page to explore: two schedules, or prediction and measurement.

    The page loads nothing. Its data are compressed JSON: some 0.4 MB for 20,000 actions.

    Args:
        panels: one or two.
        dark: a dark ground, or a light one; by default what the reader prefers.

    Raises:
        ParameterError: there are more panels, their units differ, or one does not fit its schedule.
    """
    check_panels(panels, most=2)
    data = {
        "unit": panels[0].unit,
        "kinds": [_kind(kind) for kind in Kind],
        "panels": [_panel(panel) for panel in panels],
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    filled = {
        "title": escape(" | ".join(printable(panel.title) for panel in panels)),
        "theme": "" if dark is None else "dark" if dark else "light",
        "style": _read("page.css"),
        # Nothing that a user supplies is in the page but as base64, and escaped in its title.
        "data": base64.b64encode(zlib.compress(text.encode())).decode(),
        "script": "\n".join(map(_read, _SCRIPTS)),
    }
    page = _read("page.html")
    head, *rest = page.split("{{")
    parts = [head]
    for piece in rest:
        name, _, after = piece.partition("}}")
        parts += [filled[name], after]
    return "".join(parts)


def _read(name: str) -> str:
    from importlib.resources import files  # takes longer to import than all of this package

    return files(__package__).joinpath(name).read_text("utf-8")


def _kind(kind: Kind) -> Mapping[str, Any]:
    shades = PALETTE.get(kind, PALETTE[Kind.REDUCE_GRAD])
    meaning = LEGEND[kind][1] if kind in LEGEND else KINDS[kind].meaning
    return {
        "name": kind.name,
        "meaning": meaning,
        "group": KINDS[kind].group.value,
        "colors": [[shade.web_back, shade.web_text] for shade in shades],
    }


def _panel(panel: Panel) -> Mapping[str, Any]:
    begin, end = panel.bounds
    causes = Causes(panel.schedule, panel.timeline)
    events, transfers = causes.events, panel.timeline.transfers
    first = len(events) - len(transfers)
    held = (causes.held_by(number) for number in range(len(events)))
    shades = shades_of(panel.schedule)
    return {
        "title": printable(panel.title),
        "caption": caption(panel),
        "ranks": panel.schedule.num_ranks,
        "length": end - begin,
        "shades": [shades[stage] for stage in range(panel.schedule.num_stages)],
        "stage": [event.action.stage for event in events],
        "kind": [event.action.kind for event in events],
        "microbatch": [event.action.microbatch for event in events],
        "parts": {
            number: [part[:3] for part in event.action.parts]
            for number, event in enumerate(events)
            if event.action.parts
        },
        "rank": [event.rank for event in events],
        "start": [event.start - begin for event in events],
        "end": [event.end - begin for event in events],
        "needs": [event.needs for event in events],
        "held": [-1 if number is None else number for number in held],
        "firstMessage": first,
        "to": [transfer.edge[1] for transfer in transfers],
        "size": [transfer.size for transfer in transfers],
        "critical": causes.critical_events(),
        "busy": panel.timeline.busy,
        "memoryUnit": panel.memory_unit,
        "memory": [
            {"time": [time - begin for time, _ in levels], "held": [held for _, held in levels]}
            for levels in (levels_of(panel, rank) for rank in range(len(panel.memory)))
        ],
    }
