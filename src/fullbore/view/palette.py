"""Colours: one hue a kind, safe for the colour-blind, in two shades for the stages of a rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from fullbore.ir import Kind

RESET = "\x1b[0m"
BOLD = "\x1b[1m"
DIM = "\x1b[2m"
WRONG = "\x1b[1;31m"


class Paint(NamedTuple):
    """A background and a text colour, as xterm's 256-colour numbers and for the web."""

    back: int
    text: int
    web_back: str
    web_text: str

    @property
    def block(self) -> str:
        """The escape sequence for text on a coloured block."""
        return f"\x1b[38;5;{self.text};48;5;{self.back}m"


def _table() -> Mapping[Kind, tuple[Paint, Paint]]:
    white, black = (231, "#ffffff"), (16, "#000000")

    def paint(back: int, web_back: str, text: tuple[int, str]) -> Paint:
        return Paint(back, text[0], web_back, text[1])

    forward = paint(25, "#005faf", white), paint(74, "#5fafd7", black)
    backward = paint(166, "#d75f00", black), paint(215, "#ffaf5f", black)
    for_input = paint(96, "#875f87", white), paint(182, "#d7afd7", black)
    for_weights = paint(29, "#00875f", white), paint(79, "#5fd7af", black)
    grey = paint(240, "#585858", white), paint(248, "#a8a8a8", black)
    return MappingProxyType(
        {
            Kind.F: forward,
            Kind.B: backward,
            Kind.I: for_input,
            Kind.W: for_weights,
            Kind.REDUCE_GRAD: grey,
            Kind.OVERLAP_F_B: backward,
        }
    )


PALETTE = _table()


@dataclass(frozen=True, slots=True)
class Canvas:
    """What text is drawn on.

    Attributes:
        color: it understands ANSI escape sequences.
        width: columns a line; 0 for as many as a line needs.
    """

    color: bool
    width: int

    def paint(self, text: str, style: str) -> str:
        """``text`` in a style; as it is without colours."""
        return f"{style}{text}{RESET}" if self.color and style and text else text
