"""The table of dialects, and what to say about a text that is in none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from fullbore.errors import FormatError, ParameterError
from fullbore.formats.monarch_text import MonarchText
from fullbore.formats.plain import MAX_DIGITS
from fullbore.formats.torch_text import TorchText, split_fused
from fullbore.ir import KINDS, Action, Kind


class Dialect(Protocol):
    """A way to write actions."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def example(self) -> str:
        """Some of its texts."""

    def read(self, text: str) -> tuple[Action, ...]:
        """The actions that ``text`` stands for; empty if it is none of this dialect."""

    def write(self, program: Sequence[Action], step: int) -> str:
        """The text of ``program[step]``; empty if the text before covers it. Raises
        FormatError."""


DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {dialect.name: dialect for dialect in (TorchText(), MonarchText())}
)

_LOOSE = re.compile(r"([0-9]*)([A-Za-z_]*)([0-9]*)")


def find_dialect(name: str) -> Dialect:
    """The dialect called ``name``. Raises ParameterError."""
    if name not in DIALECTS:
        raise ParameterError(f"no dialect {name!r}; there are {', '.join(DIALECTS)}")
    return DIALECTS[name]


def parse_action(text: str, *, dialect: str = "torch") -> Action:
    """The action that the whole of ``text`` stands for.

    Raises:
        FormatError: it stands for none, or for two (``2W3_rs`` in the monarch dialect).
        ParameterError: there is no such dialect.
    """
    actions = read_text(text, find_dialect(dialect))
    if len(actions) > 1:
        stands_for = " and ".join(format_action(action) for action in actions)
        raise FormatError(f"{stands_for} in the torch dialect, not one action:", text=text)
    return actions[0]


def format_action(action: Action, *, dialect: str = "torch") -> str:
    """The text of one action.

    Raises:
        FormatError: the dialect has no text for it.
        ParameterError: there is no such dialect.
    """
    return find_dialect(dialect).write((action,), 0)


def read_text(text: str, dialect: Dialect) -> tuple[Action, ...]:
    """The actions, at least one, that ``text`` stands for. Raises FormatError."""
    actions = dialect.read(text)
    if actions:
        return actions
    raise FormatError(_complaint(text, dialect), text=text, expected=dialect.example)


def write_program(program: Sequence[Action], dialect: Dialect, *, rank: int) -> list[str]:
    """The texts of one rank's program, none of them empty.

    Raises:
        FormatError: the dialect has no text for an action; says which.
    """
    texts = []
    for step in range(len(program)):
        try:
            text = dialect.write(program, step)
        except FormatError as error:
            raise FormatError(f"rank {rank}, step {step}: {error.message}") from None
        if text:
            texts.append(text)
    return texts


def _complaint(text: str, dialect: Dialect) -> str:
    """What is wrong with a text that ``dialect`` does not read."""
    for other in DIALECTS.values():
        if other.read(text):
            return f"this looks like the {other.name} dialect, not the {dialect.name} dialect:"
    split = split_fused(text)
    if split is not None:
        return _complaint_about_fused(*split, dialect)
    if ";" in text:
        return "';' joins the parts of a fused action, in parentheses; this is no action:"
    match = _LOOSE.fullmatch(text)
    if match is None or not text:
        return "not an action:"
    stage, name, microbatch = match.groups()
    if max(len(stage), len(microbatch)) > MAX_DIGITS:
        return f"a number of more than {MAX_DIGITS} digits:"
    if not dialect.read(f"0{name}0") and not dialect.read(f"0{name}"):
        return f"no kind of action is called {name[:40]!r} in the {dialect.name} dialect:"
    if not stage:
        return "an action starts with its stage:"
    return f"{name} has no microbatch:" if microbatch else f"{name} needs a microbatch:"


def _complaint_about_fused(parts: list[str], name: str, dialect: Dialect) -> str:
    if name not in Kind.__members__ or not KINDS[Kind[name]].fused:
        return f"no fused action is called {name[:40]!r}:"
    if parts == [""]:
        return "a fused action without parts:"
    for part in parts:
        if "(" in part or ")" in part:
            return "fused actions do not nest:"
        if not dialect.read(part):
            return f"part {part[:40]!r}: {_complaint(part, dialect)}"
    return f"{name} cannot be made of these parts:"
