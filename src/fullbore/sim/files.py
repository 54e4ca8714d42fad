"""Costs as a JSON file, with a version.

::

    {
      "fullbore_costs": 1,
      "unit": "ms",
      "F": [1.2, 1.1, 1.1, 1.4],
      "I": [1.3, 1.2, 1.2, 1.6],
      "W": [1.0, 1.0, 1.0, 1.1],
      "latency": 0.02,
      "bandwidth": [[0, 1, 2.5e6], [1, 0, 2.4e6]]
    }

The keys are the fields of ``TableCosts``. What belongs to a stage is a number for each or one for
all; what belongs to a pair, of ranks or of an overlap's stages, a number for all or a list of
``[first, second, number]``. Only ``fullbore_costs``, ``F``, ``I`` and ``W`` must be there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from fullbore.errors import FormatError, ParameterError
from fullbore.formats.fields import decode, wrong
from fullbore.sim.costs import TableCosts

VERSION = 1
_VERSION_KEY = "fullbore_costs"
_PAIRED = ("overlap", "latency", "bandwidth")
_REQUIRED = ("F", "I", "W")


def load_costs(path: str | Path) -> TableCosts:
    """The costs in a file.

    Raises:
        FormatError: the file cannot be read, or holds something else than it should.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise FormatError(f"cannot be read: {reason}", file=str(path)) from error
    try:
        return read_costs(text)
    except FormatError as error:
        raise error.at(file=str(path)) from error


def save_costs(costs: TableCosts, path: str | Path) -> None:
    """Write costs to a file that :func:`load_costs` reads.

    Raises:
        OSError: the file cannot be written.
    """
    Path(path).write_text(dump_costs(costs), "utf-8")


def dump_costs(costs: TableCosts) -> str:
    """Costs as JSON text, without what is left at its default."""
    data: dict[str, Any] = {_VERSION_KEY: VERSION}
    for field in fields(costs):
        value = getattr(costs, field.name)
        if value == field.default:
            continue
        if isinstance(value, Mapping):
            value = [[*pair, number] for pair, number in value.items()]
        data[field.name] = sorted(value) if isinstance(value, frozenset) else value
    lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_costs(text: str) -> TableCosts:
    """The costs in JSON text: a document of its own, or that of a plan, which has them within.

    Raises:
        FormatError: it holds something else than it should.
    """
    data = decode(text)
    if not isinstance(data, dict):
        raise wrong("the document", data, "an object")
    within = data.get("plan")
    if isinstance(within, dict) and isinstance(within.get("costs"), dict):
        data = within["costs"]
    version = data.pop(_VERSION_KEY, None)
    if type(version) is not int or version != VERSION:
        raise wrong(_VERSION_KEY, version, f"{VERSION}, the version of this format")
    known = [field.name for field in fields(TableCosts)]
    unknown = next((key for key in data if key not in known), None)
    if unknown is not None:
        raise FormatError("unknown key", text=unknown, expected=", ".join(known))
    missing = next((key for key in _REQUIRED if key not in data), None)
    if missing is not None:
        raise FormatError("a key is missing:", text=missing, expected="F, I and W at least")
    try:
        return TableCosts(**{key: _value(key, value) for key, value in data.items()})
    except ParameterError as error:
        raise FormatError(str(error)) from error


def _value(key: str, value: Any) -> Any:
    if key == "unit":
        if not isinstance(value, str):
            raise wrong(key, value, "a string")
        return value
    if key == "recompute":
        if not isinstance(value, list) or any(type(stage) is not int for stage in value):
            raise wrong(key, value, "a list of stages")
        return frozenset(value)
    if key in _PAIRED and isinstance(value, list):
        if not all(
            isinstance(row, list) and [*map(type, row[:2])] == [int, int] and len(row) == 3
            for row in value
        ):
            raise wrong(key, value, "a number, or a list of [first, second, number]")
        return {(first, second): number for first, second, number in value}
    return value
