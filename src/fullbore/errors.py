"""Every exception that fullbore raises on purpose.

::

    FullboreError
    ├── FormatError (ValueError)         a text, CSV or JSON that cannot be read or written
    ├── ParameterError (ValueError)      an argument that makes no sense; says what would
    ├── InvalidSchedule (ValueError)     .findings: everything the verifier found
    ├── PassError                        a pass refuses a schedule
    ├── MissingExtra (ImportError)       what to install
    └── ExecutionError                   .rank .stage .action; the cause is chained
        └── TransportError               a message could not be sent or received
            ├── TransportTimeout         nobody answered in time
            └── PeerFailed               another rank failed or is gone

An exception raised by the user's own module keeps its type and gains a note that names the
rank, the stage and the action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fullbore.verify import Finding


class FullboreError(Exception):
    """Base of all errors of this package."""


class FormatError(FullboreError, ValueError):
    """A text, CSV or JSON input that is not a schedule.

    ``row`` and ``column`` count from 1; each is None where it means nothing.
    """

    def __init__(
        self,
        message: str,
        *,
        text: str | None = None,
        expected: str | None = None,
        file: str | None = None,
        row: int | None = None,
        column: int | None = None,
    ) -> None:
        self.message, self.text, self.expected = message, text, expected
        self.file, self.row, self.column = file, row, column
        super().__init__(self._render())

    def _render(self) -> str:
        place = [] if self.file is None else [self.file]
        place += [
            f"{name} {value}"
            for name, value in (("row", self.row), ("column", self.column))
            if value is not None
        ]
        head = f"{', '.join(place)}: " if place else ""
        shown = "" if self.text is None else f" {_clip(self.text)!r}"
        wanted = "" if self.expected is None else f"; expected {self.expected}"
        return f"{head}{self.message}{shown}{wanted}"

    def at(
        self, *, file: str | None = None, row: int | None = None, column: int | None = None
    ) -> FormatError:
        """The same error with the place filled in where it was still unknown."""
        return FormatError(
            self.message,
            text=self.text,
            expected=self.expected,
            file=self.file if self.file is not None else file,
            row=self.row if self.row is not None else row,
            column=self.column if self.column is not None else column,
        )


def _clip(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


class ParameterError(FullboreError, ValueError):
    """An argument, or a combination of arguments, that makes no sense."""


class InvalidSchedule(FullboreError, ValueError):
    """A schedule that the verifier rejects; ``findings`` holds everything it found."""

    def __init__(self, findings: Sequence[Finding], name: str = "schedule") -> None:
        self.findings = tuple(findings)
        lines = [f"{name or 'schedule'} is not valid: {len(self.findings)} finding(s)"]
        lines += [f"  {finding}" for finding in self.findings[:20]]
        if len(self.findings) > 20:
            lines.append(f"  ... and {len(self.findings) - 20} more")
        super().__init__("\n".join(lines))


class PassError(FullboreError):
    """A pass refuses a schedule, or made one that is not valid."""


class MissingExtra(FullboreError, ImportError):
    """An optional dependency is not installed; the message says how to get it."""


class ExecutionError(FullboreError):
    """Running a schedule failed on ``rank``, in ``stage``, at ``action``."""

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        stage: int | None = None,
        action: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.rank, self.stage, self.action = message, rank, stage, action

    def __str__(self) -> str:
        place = ", ".join(
            f"{name} {value}"
            for name, value in (
                ("rank", self.rank),
                ("stage", self.stage),
                ("action", self.action),
            )
            if value is not None
        )
        return f"{place}: {self.message}" if place else self.message


class TransportError(ExecutionError):
    """A message between two ranks could not be sent, received or understood."""


class TransportTimeout(TransportError):
    """A message did not arrive, or could not be sent, in time.

    ``positions`` says where the other ranks were, by rank, on the rank that found out.
    """

    positions: Mapping[int, object] = {}


class PeerFailed(TransportError):
    """Another rank failed, or its process is gone."""
