"""Texts and files of whole schedules."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fullbore.errors import FormatError, ParameterError
from fullbore.formats import csv, json, txt
from fullbore.formats.content import Content
from fullbore.formats.dialects import Dialect, find_dialect
from fullbore.ir import Form, Placement, Schedule


class Format(NamedTuple):
    """How a format is read and written."""

    read: Callable[[str, Dialect], Content]
    write: Callable[[Schedule, Dialect], str]


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "csv": Format(csv.read, csv.write),
        "json": Format(json.read, json.write),
        "txt": Format(txt.read, txt.write),
    }
)


def loads(
    text: str,
    *,
    format: str,  # noqa: A002 - the name that the user knows it by
    dialect: str = "torch",
    form: Form | None = None,
    placement: Placement | None = None,
    num_microbatches: int | None = None,
    file: str | None = None,
) -> Schedule:
    """The schedule that ``text`` holds. Whether it is valid is for the verifier to say.

    Args:
        text: the whole content of a file.
        format: ``csv``, ``json`` or ``txt``.
        dialect: ``torch`` or ``monarch``; JSON is always ``torch``.
        form, placement, num_microbatches: what the text does not say. What is still not known is
            inferred: a stage is where it first appears, the microbatches go up to the highest one,
            the form is ``LOWERED`` if anything but computation is there, and a schedule without
            any backward is forward-only.
        file: what errors call the text.

    Raises:
        FormatError: the text does not hold a schedule, or contradicts the arguments; with the
            place and what was expected there.
        ParameterError: it is no text, or there is no such format or dialect.
    """
    if not isinstance(text, str):
        raise ParameterError(f"loads: takes text, got {type(text).__name__}; load takes a path")
    reader, chosen = _find_format(format), find_dialect(dialect)
    try:
        content = reader.read(text.removeprefix("\ufeff"), chosen)
        return content.stating(
            placement=placement, num_microbatches=num_microbatches, form=form
        ).schedule()
    except FormatError as error:
        raise error.at(file=file) from error.__cause__


def dumps(
    schedule: Schedule,
    *,
    format: str,  # noqa: A002 - the name that the user knows it by
    dialect: str = "torch",
) -> str:
    """``schedule`` as text: ``loads`` of it equals ``schedule``.

    Args:
        schedule: any schedule, valid or not.
        format: ``csv``, ``json`` or ``txt``.
        dialect: ``torch`` or ``monarch``; JSON is always ``torch``.

    Raises:
        FormatError: the format or dialect cannot hold this schedule.
        ParameterError: it is no Schedule, or there is no such format or dialect.
    """
    if not isinstance(schedule, Schedule):
        raise ParameterError(f"dumps: takes a Schedule, got a {type(schedule).__name__}")
    return _find_format(format).write(schedule, find_dialect(dialect))


def load(
    path: str | os.PathLike[str],
    *,
    dialect: str = "torch",
    form: Form | None = None,
    placement: Placement | None = None,
    num_microbatches: int | None = None,
) -> Schedule:
    """The schedule in the file ``path``; its ending says the format.

    The arguments are those of ``loads``.

    Raises:
        FormatError: the file does not hold a schedule, or contradicts the arguments.
        ParameterError: the ending is not ``.csv``, ``.json`` or ``.txt``, or no such dialect.
        OSError: the file cannot be read.
    """
    chosen, file = _format_of(path), os.fspath(path)
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 text: {error.reason}", file=file) from error
    return loads(
        text,
        format=chosen,
        dialect=dialect,
        form=form,
        placement=placement,
        num_microbatches=num_microbatches,
        file=file,
    )


def save(schedule: Schedule, path: str | os.PathLike[str], *, dialect: str = "torch") -> None:
    """Write ``schedule`` to the file ``path``; its ending says the format.

    Raises:
        FormatError: the format or dialect cannot hold this schedule; nothing is written.
        ParameterError: the ending is not ``.csv``, ``.json`` or ``.txt``, or no such dialect.
        OSError: the file cannot be written.
    """
    text = dumps(schedule, format=_format_of(path), dialect=dialect)
    Path(path).write_bytes(text.encode("utf-8"))


def _find_format(name: str) -> Format:
    if name not in FORMATS:
        raise ParameterError(f"no format {name!r}; there are {', '.join(FORMATS)}")
    return FORMATS[name]


def _format_of(path: str | os.PathLike[str]) -> str:
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        endings = ", ".join(f".{name}" for name in FORMATS)
        raise ParameterError(f"{os.fspath(path)}: the file's ending must be one of {endings}")
    return ending
