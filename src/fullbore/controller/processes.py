"""Whether processes of this host live, and whether they are stopped."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

STOPPED_SECONDS = 2.0
"""A process that is stopped for less may be looked at by a debugger."""

_LOOK_SECONDS = 0.2


class Processes:
    """The processes of ranks, as far as they are on this host and the system tells (Linux).

    Args:
        pids: by rank.
    """

    def __init__(self, pids: Mapping[int, int]) -> None:
        self._pids = dict(pids)
        self._files: dict[int, int] = {}
        self._stopped: dict[int, float] = {}
        self._looked = 0.0
        for rank, pid in pids.items():
            if hasattr(os, "pidfd_open"):
                self._files[rank] = os.pidfd_open(pid)

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
            halted = [rank for rank, pid in self._pids.items() if _state(pid) in "Tt"]
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


def _state(pid: int) -> str:
    """The letter that ``ps`` shows; nothing that is ever meant if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return "?"
    return text.rpartition(")")[2].split()[0]
