"""Whether processes of this host live, and whether they are stopped."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

STOPPED_SECONDS = 2.0
"""A process that is stopped for less may be looked at by a debugger."""

_LOOK_SECONDS = 0.2


_STARTED = 19
"""The field that says when it was started."""


class Identity(NamedTuple):
    """Which process of a host: its number, and when it was started, in the system's unit."""

    pid: int
    started: str

    @classmethod
    def own(cls) -> Identity:
        """This process's."""
        return cls(os.getpid(), "".join(_fields("self")[_STARTED : _STARTED + 1]))


class Processes:
    """The processes of ranks, as far as they are on this host and the system tells (Linux).

    Args:
        identities: by rank.
    """

    def __init__(self, identities: Mapping[int, Identity]) -> None:
        self._pids: dict[int, int] = {}
        self._files: dict[int, int] = {}
        self._stopped: dict[int, float] = {}
        self._looked = 0.0
        for rank, (pid, started) in identities.items():
            file = _open(pid)
            # Where a process of a container has another number here, this is another process.
            if file is not None and started and _fields(pid)[_STARTED : _STARTED + 1] == [started]:
                self._files[rank], self._pids[rank] = file, pid
            elif file is not None:
                os.close(file)

    def ended(self) -> list[int]:
        """The ranks whose processes have ended."""
        if not self._files:
            return []
        poll = select.poll()
        for file in self._files.values():
            poll.register(file, select.POLLIN)
        ready = {file for file, _ in poll.poll(0)}
        return [rank for rank, file in self._files.items() if file in ready]

    def stopped(self) -> list[int]:
        """The ranks whose processes have been stopped for a while."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            halted = [
                rank for rank, pid in self._pids.items() if _fields(pid)[:1] in (["T"], ["t"])
            ]
            self._stopped = {rank: self._stopped.get(rank, now) for rank in halted}
        return [rank for rank, since in self._stopped.items() if now - since >= STOPPED_SECONDS]

    def kill(self) -> None:
        """End them all, and no others that have their numbers by now."""
        for file in self._files.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(file, signal.SIGKILL)

    def pid(self, rank: int) -> int | None:
        """The process's number, if it is on this host."""
        return self._pids.get(rank)

    def close(self) -> None:
        """Look no more."""
        for file in self._files.values():
            os.close(file)
        self._files, self._pids = {}, {}


def _open(pid: int) -> int | None:
    """A file that tells of the process's end, if the system gives one."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _fields(pid: int | str) -> list[str]:
    """What /proc tells of a process, from its state on; nothing if it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
