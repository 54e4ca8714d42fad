"""Schedules as text: two dialects of an action, three formats of a file."""

from fullbore.formats.dialects import DIALECTS, Dialect, format_action, parse_action
from fullbore.formats.files import FORMATS, dumps, load, loads, save

__all__ = [
    "DIALECTS",
    "FORMATS",
    "Dialect",
    "dumps",
    "format_action",
    "load",
    "loads",
    "parse_action",
    "save",
]
