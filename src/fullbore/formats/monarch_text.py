"""The dialect of Monarch: ``2B0`` is an input gradient, ``2BW0`` a full backward."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fullbore.errors import FormatError
from fullbore.formats.plain import NUMBER, PlainText
from fullbore.ir import KINDS, Action, Kind, fuse

_RENAMED = {Kind.I: "B", Kind.B: "BW"}
_PLAIN = PlainText(
    {
        kind: _RENAMED.get(kind, kind.name)
        for kind, info in KINDS.items()
        if not info.fused and kind is not Kind.REDUCE_GRAD
    }
)
_PAIRS = {KINDS[kind].parts: kind for kind in (Kind.SEND_F_RECV_B, Kind.SEND_B_RECV_F)}
_PAIR = re.compile(f"({NUMBER}SEND_[FB]{NUMBER})_({NUMBER}RECV_[FB]{NUMBER})")
_REDUCED = "_rs"


def _has_weights(action: Action) -> bool:
    return action.kind in (Kind.B, Kind.W)


class MonarchText:
    """The ``monarch`` dialect. ``2W3_rs`` stands for two actions: ``2W3`` and, directly after it,
    the reduction of stage 2's gradients, which cannot be written anywhere else."""

    name = "monarch"
    example = "2F0, 2B0 (input gradient), 2BW0 (full backward), 2W3_rs or 3SEND_F12_7RECV_B15"

    def read(self, text: str) -> tuple[Action, ...]:
        """The actions that ``text`` stands for; empty if it is none of this dialect."""
        plain = _PLAIN.read(text.removesuffix(_REDUCED))
        if plain is not None and not text.endswith(_REDUCED):
            return (plain,)
        if plain is not None:
            reduce = Action(plain.stage, Kind.REDUCE_GRAD)
            return (plain, reduce) if _has_weights(plain) else ()
        match = _PAIR.fullmatch(text)
        if match is None:
            return ()
        parts = [part for part in map(_PLAIN.read, match.groups()) if part is not None]
        kind = _PAIRS.get(tuple(part.kind for part in parts))
        return () if kind is None else (fuse(kind, *parts),)

    def write(self, program: Sequence[Action], step: int) -> str:
        """The text of ``program[step]``; empty for a reduction that its predecessor's text covers.

        Raises:
            FormatError: the dialect has no text for the action, or not in this place.
        """
        action = program[step]
        if action.kind is Kind.REDUCE_GRAD:
            self._check_reduction(program, step)
            return ""
        if not KINDS[action.kind].fused:
            reduced = step + 1 < len(program) and _reduces(action, program[step + 1])
            return _PLAIN.write(action) + (_REDUCED if reduced else "")
        if _PAIRS.get(tuple(part.kind for part in action.parts)) is not action.kind:
            raise FormatError(f"{action} has no text in the monarch dialect")
        return "_".join(map(_PLAIN.write, action.parts))

    def _check_reduction(self, program: Sequence[Action], step: int) -> None:
        if step == 0 or not _reduces(program[step - 1], program[step]):
            raise FormatError(
                f"{program[step]} has no text in the monarch dialect: there, a reduction directly "
                "follows a weight gradient or full backward of its stage (the suffix _rs)"
            )


def _reduces(action: Action, following: Action) -> bool:
    """Whether ``following`` is the reduction that the suffix of ``action`` stands for."""
    return _has_weights(action) and following == (action.stage, Kind.REDUCE_GRAD, -1, ())
