"""Plain text, for people: one line a rank, and what else is known in header lines.

::

    # name: gpipe
    # parameters: {"num_ranks": 2, "num_microbatches": 1}
    # form: compute
    # forward_only: false
    # num_microbatches: 1
    # placement: 0 1
    rank 0: 0F0 0B0
    rank 1: 1F0 1B0

Every header may be missing; what it would say is inferred, as for CSV. Other lines that start with
``#`` are comments, as long as they do not read ``# word: ...`` or ``# Placement: ...``, which may
be a misspelt header.
"""

from __future__ import annotations

import io
import json
import re
from typing import Any

from fullbore.errors import FormatError
from fullbore.formats import fields
from fullbore.formats.content import Content
from fullbore.formats.dialects import DIALECTS, Dialect, read_text, write_program
from fullbore.formats.plain import NUMBER
from fullbore.ir import Action, Program, Schedule

_WORDLIKE = re.compile("[a-z_]+")
_RANK = re.compile(rf"\s*rank ({NUMBER}):")
_WORD = re.compile(r"\S+")
_KEYS = ("dialect", *fields.FIELDS)
_STRINGS = ("name", "form")


def read(text: str, dialect: Dialect) -> Content:
    """What a text says.

    Raises:
        FormatError: a line is neither header, comment nor rank, an entry is no action, ranks are
            not 0..P-1 in order, or the header names another dialect.
    """
    headers: dict[str, Any] = {}
    programs: list[Program] = []
    for row, line in enumerate(io.StringIO(text, newline=None), 1):
        try:
            if line.lstrip().startswith("#"):
                _read_comment(line.strip(), headers, dialect)
            elif line.strip():
                programs.append(_read_rank(line, dialect, rank=len(programs)))
        except FormatError as error:
            raise error.at(row=row) from None
    if not programs:
        raise FormatError("no ranks", expected="lines such as 'rank 0: 0F0 0B0'")
    headers.pop("dialect", None)
    return Content(tuple(programs), **headers)


def write(schedule: Schedule, dialect: Dialect) -> str:
    """The text, with every header that says something.

    Raises:
        FormatError: the dialect has no text for an action, or the name is not one line.
    """
    name = schedule.name
    if name != name.strip() or not name.isprintable():
        raise FormatError("a name that plain text cannot hold:", text=name)
    headers = {
        "dialect": "" if dialect.name == "torch" else dialect.name,
        "name": name,
        "parameters": json.dumps(dict(schedule.parameters)) if schedule.parameters else "",
        "form": schedule.form.value,
        "forward_only": json.dumps(schedule.forward_only),
        "num_microbatches": str(schedule.num_microbatches),
        "placement": " ".join(map(str, schedule.placement.ranks)),
    }
    lines = [f"# {key}: {value}" for key, value in headers.items() if value]
    for rank, program in enumerate(schedule.programs):
        lines.append(" ".join([f"rank {rank}:", *write_program(program, dialect, rank=rank)]))
    return "\n".join(lines) + "\n"


def _read_comment(line: str, headers: dict[str, Any], dialect: Dialect) -> None:
    key, colon, value = (part.strip() for part in line[1:].partition(":"))
    if not colon:
        return
    if key not in _KEYS:
        if _WORDLIKE.fullmatch(key) or re.sub("[ -]", "_", key.lower()) in _KEYS:
            raise FormatError("unknown header", text=key, expected=", ".join(_KEYS))
        return
    if key in headers:
        raise FormatError("a header twice:", text=key)
    if key == "dialect":
        _check_dialect(value, dialect)
    headers[key] = value if key == "dialect" else _value(key, value)


def _check_dialect(name: str, asked: Dialect) -> None:
    if name != asked.name:
        hint = f"; ask for {name}" if name in DIALECTS else ""
        raise FormatError(f"the dialect is {name[:40]} here, {asked.name} was asked for{hint}")


def _value(key: str, text: str) -> Any:
    """What the header ``key`` holds, for ``Content``."""
    if key in _STRINGS:
        return fields.parse(key, text)
    try:
        value = fields.decode(
            f"[{','.join(text.replace(',', ' ').split())}]" if key == "placement" else text
        )
    except FormatError:
        expected = fields.FIELDS[key].expected
        raise FormatError(f"{key}: not", text=text, expected=expected) from None
    return fields.parse(key, value)


def _read_rank(line: str, dialect: Dialect, *, rank: int) -> Program:
    match = _RANK.match(line)
    if match is None or int(match[1]) != rank:
        raise FormatError(
            "not the next rank:", text=line.strip(), expected=f"'rank {rank}:' and its actions"
        )
    program: list[Action] = []
    for word in _WORD.finditer(line, match.end()):
        try:
            program += read_text(word[0], dialect)
        except FormatError as error:
            raise error.at(column=word.start() + 1) from None
    return tuple(program)
