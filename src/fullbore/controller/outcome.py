"""How a request to a process of its own ended, and how its failure is told."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fullbore.controller.packing import pack, unpack
from fullbore.errors import ExecutionError, PeerFailed, TransportTimeout
from fullbore.runtime.failure import describe


class RemoteTraceback(Exception):
    """The traceback of an exception in a rank's process, as text."""


@dataclass(frozen=True, slots=True)
class Raised:
    """A request failed.

    Attributes:
        error: what was raised.
        trace: where, as text.
        is_consequence: another rank failed before.
    """

    error: Exception
    trace: str
    is_consequence: bool

    def again(self) -> Exception:
        """The error, to be raised here."""
        self.error.__cause__ = RemoteTraceback(f"\n{self.trace}")
        return self.error


Outcome = tuple[Any] | Raised
"""A result, or how a request failed."""


def pack_result(value: Any) -> bytes:
    """A result as bytes; if it cannot be, that is the failure."""
    try:
        return pack((value,))
    except Exception as error:  # noqa: BLE001 - the controller raises it again
        return pack_failure(error)


def pack_failure(error: BaseException) -> bytes:
    """A failure as bytes, whatever the exception is like."""
    trace = "".join(traceback.format_exception(error))
    is_consequence = any(isinstance(e, PeerFailed | TransportTimeout) for e in _chain(error))
    try:
        # An exception may be packed well, and still not be made again from that.
        data = pack(Raised(_bare(error), trace, is_consequence))
        unpack(data)
    except Exception:  # noqa: BLE001 - anything may come of a user's class
        return pack(Raised(_plain(error), trace, is_consequence))
    return data


def _bare(error: BaseException) -> Exception:
    # KeyboardInterrupt or SystemExit in a rank must not end the controller's program.
    if not isinstance(error, Exception):
        return _plain(error)
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def _plain(error: BaseException) -> ExecutionError:
    return ExecutionError(describe(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
