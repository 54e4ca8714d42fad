"""What JSON and plain text say besides actions: the same fields, checked in the same way."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from fullbore.errors import FormatError, ParameterError
from fullbore.ir import Form, Placement


class Field(NamedTuple):
    """What a field holds, in words, and the function that makes it of what JSON would hold. It
    raises ValueError for something else."""

    expected: str
    parse: Callable[[Any], Any]


def parse(name: str, value: object) -> Any:
    """What the field called ``name``, one of ``FIELDS``, holds for ``Content``.

    Raises:
        FormatError: ``value`` is not what it should be.
    """
    try:
        return FIELDS[name].parse(value)
    except ParameterError as error:
        raise FormatError(str(error)) from error
    except ValueError:
        raise wrong(name, value, FIELDS[name].expected) from None


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
    except RecursionError:
        raise FormatError("not JSON of a sensible size: too deep") from None
    except ValueError:
        raise FormatError("not JSON of a sensible size: a number with too many digits") from None


def wrong(what: str, value: object, expected: str) -> FormatError:
    """The error for something that does not hold what it should."""
    plain = value is None or isinstance(value, str | int | float)
    shown = json.dumps(value) if plain else reprlib.repr(value)
    return FormatError(f"{what}: not", text=shown, expected=expected)


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
        raise ValueError
    return Placement(tuple(value))


def _count(value: object) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError
    return value


def _form(value: object) -> Form | None:
    return None if value is None else Form(value)


def _flag(value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise ValueError
    return value


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _parameters(value: object) -> tuple[tuple[str, int | str], ...]:
    if not isinstance(value, dict) or not all(isinstance(v, int | str) for v in value.values()):
        raise ValueError
    return tuple(value.items())


FIELDS: Mapping[str, Field] = MappingProxyType(
    {
        "name": Field("a string", _name),
        "parameters": Field("an object of whole numbers and strings", _parameters),
        "form": Field(" or ".join(form.value for form in Form), _form),
        "forward_only": Field("true or false", _flag),
        "num_microbatches": Field("a positive number", _count),
        "placement": Field("each stage's rank", _placement),
    }
)
