"""The dialect of PyTorch and TensorPlay: ``2F0``, ``0I4``, ``(0F7;7B3)OVERLAP_F_B``."""

from __future__ import annotations

from collections.abc import Sequence

from fullbore.errors import FormatError
from fullbore.formats.plain import PlainText
from fullbore.ir import KINDS, Action, Group, Kind, fuse

_PLAIN = PlainText({kind: kind.name for kind, info in KINDS.items() if not info.fused})
_COMPUTE = {kind for kind in _PLAIN.names if KINDS[kind].group is Group.COMPUTE}
_FUSED = {kind.name: kind for kind, info in KINDS.items() if info.fused}


def split_fused(text: str) -> tuple[list[str], str] | None:
    """The texts of the parts and of the kind of ``(part;part)KIND``, None for other texts."""
    body, close, kind = text.rpartition(")")
    if not close or not body.startswith("("):
        return None
    return body[1:].split(";"), kind


def fit(kind: Kind, parts: Sequence[Action]) -> bool:
    """Whether a fused action of ``kind`` can have these parts.

    An overlap takes any computation, so that the verifier can say what is wrong with it.
    """
    if KINDS[kind].group is Group.COMPUTE:
        return bool(parts) and all(part.kind in _COMPUTE for part in parts)
    return tuple(part.kind for part in parts) == KINDS[kind].parts


class TorchText:
    """The ``torch`` dialect. Its names of the kinds are those of ``Kind``."""

    name = "torch"
    example = "2F0, 0I4, 1UNSHARD or (0F7;7B3)OVERLAP_F_B"

    def read(self, text: str) -> tuple[Action, ...]:
        """The action that ``text`` stands for; empty if it is none of this dialect."""
        plain = _PLAIN.read(text)
        if plain is not None:
            return (plain,)
        split = split_fused(text)
        if split is None or split[1] not in _FUSED:
            return ()
        kind = _FUSED[split[1]]
        parts = [part for part in map(_PLAIN.read, split[0]) if part is not None]
        if len(parts) < len(split[0]) or not fit(kind, parts):
            return ()
        return (fuse(kind, *parts),)

    def write(self, program: Sequence[Action], step: int) -> str:
        """The text of ``program[step]``.

        Raises:
            FormatError: the action is malformed.
        """
        action = program[step]
        if not KINDS[action.kind].fused:
            return _PLAIN.write(action)
        if action[::2] != (-1, -1) or not fit(action.kind, action.parts):
            raise FormatError(f"{action} cannot be written: it is not made as its kind demands")
        return f"({';'.join(map(_PLAIN.write, action.parts))}){action.kind.name}"
