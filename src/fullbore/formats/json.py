"""JSON: everything that a schedule is, with a version. Always in the ``torch`` dialect.

::

    {
      "fullbore": 1,
      "name": "gpipe",
      "parameters": {"num_ranks": 2, "num_microbatches": 1},
      "form": "compute",
      "forward_only": false,
      "num_microbatches": 1,
      "placement": [0, 1],
      "programs": {
        "0": ["0F0", "0B0"],
        "1": ["1F0", "1B0"]
      }
    }

Only ``fullbore`` (the version) and ``programs`` must be there; the rest is inferred, as for CSV.
A ``plan`` may stand beside them: what the planner says about the schedule, which is not read here.
"""

from __future__ import annotations

import json

from fullbore.errors import FormatError, ParameterError
from fullbore.formats import fields
from fullbore.formats.content import Content
from fullbore.formats.dialects import Dialect, read_text, write_program
from fullbore.ir import Action, Program, Schedule

VERSION = 1
_KEYS = ("fullbore", *fields.FIELDS, "programs", "plan")
_REQUIRED = ("fullbore", "programs")
_EXAMPLE = '{"fullbore": 1, "programs": {"0": ["0F0", "0B0"]}} at least'


def read(text: str, dialect: Dialect) -> Content:
    """What a JSON document says.

    Raises:
        FormatError: it is not JSON, of another version, or holds something else than it should.
        ParameterError: ``dialect`` is not ``torch``.
    """
    _check_dialect(dialect)
    data = fields.decode(text)
    if not isinstance(data, dict):
        raise fields.wrong("the document", data, "an object")
    missing = next((key for key in _REQUIRED if key not in data), None)
    if missing is not None:
        raise FormatError("a key is missing:", text=missing, expected=_EXAMPLE)
    version = data["fullbore"]
    if type(version) is not int or version != VERSION:
        raise fields.wrong("fullbore", version, f"{VERSION}, the version of this format")
    unknown = next((key for key in data if key not in _KEYS), None)
    if unknown is not None:
        raise FormatError("unknown key", text=unknown, expected=", ".join(_KEYS))
    known = {key: fields.parse(key, data[key]) for key in fields.FIELDS if key in data}
    return Content(_programs(data["programs"], dialect), **known)


def write(schedule: Schedule, dialect: Dialect) -> str:
    """A JSON document; one line a rank.

    Raises:
        FormatError: an action is malformed.
        ParameterError: ``dialect`` is not ``torch``.
    """
    _check_dialect(dialect)
    head = {
        "fullbore": VERSION,
        "name": schedule.name,
        "parameters": dict(schedule.parameters),
        "form": schedule.form.value,
        "forward_only": schedule.forward_only,
        "num_microbatches": schedule.num_microbatches,
        "placement": schedule.placement.ranks,
    }
    lines = [f'  "{key}": {json.dumps(value)},\n' for key, value in head.items()]
    programs = ",\n".join(
        f'    "{rank}": {json.dumps(write_program(program, dialect, rank=rank))}'
        for rank, program in enumerate(schedule.programs)
    )
    return f'{{\n{"".join(lines)}  "programs": {{\n{programs}\n  }}\n}}\n'


def _check_dialect(dialect: Dialect) -> None:
    if dialect.name != "torch":
        raise ParameterError(f"JSON is in the torch dialect, never in the {dialect.name} dialect")


def _programs(value: object, dialect: Dialect) -> tuple[Program, ...]:
    if not isinstance(value, dict) or not value:
        raise fields.wrong("programs", value, 'the ranks: {"0": ["0F0", ...], "1": ...}')
    for index, rank in enumerate(value):
        if rank != str(index):
            raise FormatError(
                f"programs: rank {index} is missing or not in its place, where there is",
                text=rank,
                expected="all ranks from 0 to P-1, in order",
            )
    return tuple(_program(rank, texts, dialect) for rank, texts in value.items())


def _program(rank: str, texts: object, dialect: Dialect) -> Program:
    if not isinstance(texts, list):
        raise fields.wrong(f"programs, rank {rank}", texts, "a list of actions")
    program: list[Action] = []
    for position, text in enumerate(texts):
        where = f"programs, rank {rank}, position {position}"
        if not isinstance(text, str):
            raise fields.wrong(where, text, "a string")
        try:
            program += read_text(text, dialect)
        except FormatError as error:
            raise FormatError(
                f"{where}: {error.message}", text=error.text, expected=error.expected
            ) from None
    return tuple(program)
