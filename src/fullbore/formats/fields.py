"""What JSON and plain text say besides actions: the same fields, checked in the same way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NoReturn

from fullbore.errors import FormatError, ParameterError
from fullbore.formats.content import Content
from fullbore.ir import Form, Placement, Program

FIELDS = ("name", "parameters", "form", "forward_only", "num_microbatches", "placement")


def content(programs: tuple[Program, ...], values: Mapping[str, object]) -> Content:
    """The programs with those of ``FIELDS`` that ``values`` holds, as JSON would hold them.

    Raises:
        FormatError: a value is not what it should be.
    """
    return Content(
        programs,
        _placement(values.get("placement")),
        _count(values.get("num_microbatches")),
        _form(values.get("form")),
        _flag(values.get("forward_only")),
        _name(values.get("name", "")),
        _parameters(values.get("parameters", {})),
    )


def decode(text: str) -> object:
    """The value that a JSON text stands for.

    Raises:
        FormatError: it is not JSON, or an object has a key twice.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except FormatError:
        raise
    except json.JSONDecodeError as error:
        raise FormatError(f"not JSON: {error.msg}", row=error.lineno, column=error.colno) from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON of a sensible size: {error}") from error


def wrong(what: str, value: object, expected: str) -> FormatError:
    """The error for a field that holds something else than it should."""
    shown = json.dumps(value) if value is None or isinstance(value, str | int | float) else ""
    return FormatError(f"{what}: not", text=shown or type(value).__name__, expected=expected)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise FormatError("a key twice:", text=key)
        found[key] = value
    return found


def _no_constant(text: str) -> NoReturn:
    raise FormatError("not JSON:", text=text)


def _placement(value: object) -> Placement | None:
    if value is None:
        return None
    if not isinstance(value, list) or any(type(rank) is not int for rank in value):
        raise wrong("placement", value, "each stage's rank")
    try:
        return Placement(tuple(value))
    except ParameterError as error:
        raise FormatError(str(error)) from error


def _count(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise wrong("num_microbatches", value, "a positive number")
    return value


def _form(value: object) -> Form | None:
    if value is None:
        return None
    form = next((form for form in Form if form.value == value), None)
    if form is None:
        raise wrong("form", value, " or ".join(form.value for form in Form))
    return form


def _flag(value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise wrong("forward_only", value, "true or false")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise wrong("name", value, "a string")
    return value


def _parameters(value: object) -> tuple[tuple[str, int | str], ...]:
    if not isinstance(value, dict) or not all(isinstance(v, int | str) for v in value.values()):
        raise wrong("parameters", value, "an object of whole numbers and strings")
    return tuple(value.items())
