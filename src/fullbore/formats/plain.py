"""``[stage][kind][microbatch]``: the text that both dialects share, each under its own names."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fullbore.errors import FormatError
from fullbore.ir import KINDS, Action, Kind

# Enough for any schedule; a longer number is a mistake, and would cost time to convert.
MAX_DIGITS = 9
NUMBER = f"[0-9]{{1,{MAX_DIGITS}}}"
_ACTION = re.compile(f"({NUMBER})([A-Z_]+)({NUMBER})?")


class PlainText:
    """Reads and writes the actions that are not fused.

    Args:
        names: what each plain kind is called.
    """

    def __init__(self, names: Mapping[Kind, str]) -> None:
        self.names = names
        self._kinds = {name: (kind, KINDS[kind].has_microbatch) for kind, name in names.items()}

    def read(self, text: str) -> Action | None:
        """The action that ``text`` stands for, None if it stands for none."""
        match = _ACTION.fullmatch(text)
        if match is None:
            return None
        stage, name, microbatch = match.groups()
        kind, has_microbatch = self._kinds.get(name, (None, False))
        if kind is None or has_microbatch is (microbatch is None):
            return None
        return Action(int(stage), kind, -1 if microbatch is None else int(microbatch))

    def write(self, action: Action) -> str:
        """The text of ``action``.

        Raises:
            FormatError: the kind has no name here, or a number is out of range.
        """
        stage, kind, microbatch, parts = action
        name = self.names.get(kind)
        if name is None:
            raise FormatError(f"{action} cannot be written here")
        limit = 10**MAX_DIGITS
        if parts or not 0 <= stage < limit:
            raise FormatError(f"{action} cannot be written: its stage or parts make no sense")
        if not KINDS[kind].has_microbatch and microbatch == -1:
            return f"{stage}{name}"
        if not KINDS[kind].has_microbatch or not 0 <= microbatch < limit:
            raise FormatError(f"{action} cannot be written: its microbatch makes no sense")
        return f"{stage}{name}{microbatch}"
