"""Pictures as files: what is written follows from the ending of the name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fullbore.errors import ParameterError
from fullbore.view.figure import render_figure
from fullbore.view.page import render_page
from fullbore.view.panel import Panel
from fullbore.view.trace import render_trace


class Writer(NamedTuple):
    """What makes the content of a file, and which options it has."""

    render: Callable[..., bytes | str]
    options: frozenset[str]


def _svg(panels: Sequence[Panel], **options: Any) -> bytes:
    return render_figure(panels, "svg", **options)


def _png(panels: Sequence[Panel], **options: Any) -> bytes:
    return render_figure(panels, "png", **options)


def _trace(panels: Sequence[Panel]) -> str:
    if len(panels) != 1:
        raise ParameterError(f"trace: give one panel a file, got {len(panels)}")
    return render_trace(panels[0])


_FIGURE = frozenset({"dark", "width", "memory", "messages"})

WRITERS: Mapping[str, Writer] = MappingProxyType(
    {
        ".svg": Writer(_svg, _FIGURE),
        ".png": Writer(_png, _FIGURE),
        ".html": Writer(render_page, frozenset({"dark"})),
        ".trace.json": Writer(_trace, frozenset()),
    }
)


def ending_of(path: str | Path) -> str:
    """The ending of a file that pictures are written to.

    Raises:
        ParameterError: it is none of them.
    """
    name = Path(path).name.lower()
    found = next((ending for ending in WRITERS if name.endswith(ending)), None)
    if found is None:
        hint = " (.json is a schedule; a trace is a .trace.json)" if name.endswith(".json") else ""
        raise ParameterError(f"{path}: pictures end in {', '.join(WRITERS)}{hint}")
    return found


def save_picture(panels: Panel | Sequence[Panel], path: str | Path, **options: Any) -> None:
    """Write a picture of one or more timelines.

    Args:
        panels: what to draw; see :func:`fullbore.view.simulated`.
        path: ends in ``.svg`` or ``.png`` (up to four panels), ``.html`` (up to two) or
            ``.trace.json`` (one), which Perfetto opens.
        options: those of :func:`render_figure` for ``.svg`` and ``.png`` (``dark``, ``width``,
            ``memory``, ``messages``), of :func:`render_page` for ``.html`` (``dark``).

    Raises:
        MissingExtra: SVG or PNG, and matplotlib is not installed.
        ParameterError: the ending is unknown, it has no such option, or an argument makes no sense.
        OSError: the file cannot be written.
    """
    writer = WRITERS[ending := ending_of(path)]
    if strange := sorted(options.keys() - writer.options):
        raise ParameterError(f"pictures: {ending} files have no option {strange[0]!r}")
    # A panel is a tuple itself.
    content = writer.render([panels] if isinstance(panels, Panel) else panels, **options)
    Path(path).write_bytes(content.encode() if isinstance(content, str) else content)
