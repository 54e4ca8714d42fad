"""Where a rank is, readable by the others although it computes, hangs or is stopped."""

from __future__ import annotations

import mmap
import os
import secrets
import struct
import time
from dataclasses import dataclass
from pathlib import Path

STEP, RUN, WAITS_FOR = range(3)
"""What the numbers of a :data:`Progress` are: the mark of the current action, NOWHERE between two
runs; the run's number, as in a message's tag; the rank that it has been waiting for for a while,
NOWHERE if none."""

NOWHERE = -1

Progress = list[int] | memoryview
"""Three numbers that a rank writes as it goes on. Writing costs no more than to a list."""

_NUMBERS = struct.Struct("=4q")
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rank is, as another one sees it.

    Attributes:
        mark, run, waits_for: as in :data:`Progress`.
        seconds: for how long it has not moved, as far as that was seen.
        trouble: why it will not move ("its process is stopped"), if that is known.
    """

    mark: int
    run: int
    waits_for: int
    seconds: float = 0.0
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the page of a process of this host is. ``key`` is its last number: another process may
    have got the process's number meanwhile."""

    pid: int
    file: int
    key: int

    def encode(self) -> bytes:
        """As bytes, for :meth:`decode`."""
        return _NUMBERS.pack(self.pid, self.file, self.key, 0)

    @classmethod
    def decode(cls, data: bytes) -> Address:
        """From :meth:`encode`."""
        return cls(*_NUMBERS.unpack(data)[:3])


class Page:
    """Progress that other processes of this host can read, where the system allows (Linux).

    Attributes:
        progress: to be written.
        address: for others; None if they cannot read it.
    """

    def __init__(self) -> None:
        self.address: Address | None = None
        self._file = -1
        if not hasattr(os, "memfd_create"):
            self.progress: Progress = fresh_progress()
            return
        self._file = os.memfd_create("fullbore-progress")
        os.ftruncate(self._file, _PAGE_BYTES)
        self.address = Address(os.getpid(), self._file, secrets.randbits(62))
        numbers = memoryview(mmap.mmap(self._file, _PAGE_BYTES)).cast("q")
        for index, number in enumerate((*fresh_progress(), self.address.key)):
            numbers[index] = number
        self.progress = numbers

    def renew(self) -> Progress:
        """Begin anew, with another object for the same numbers."""
        numbers = self.progress[:] if self.address else fresh_progress()
        for index, number in enumerate(fresh_progress()):
            numbers[index] = number
        self.progress = numbers
        return numbers

    def close(self) -> None:
        """Others cannot read it any more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Onlooker:
    """Reads the pages of other ranks, and remembers for how long each has not moved."""

    def __init__(self) -> None:
        self.addresses: dict[int, Address] = {}
        self._seen: dict[int, tuple[tuple[int, ...], float]] = {}

    def look(self) -> dict[int, Position]:
        """The positions of the ranks whose pages can be read, by rank."""
        found, now = {}, time.monotonic()
        for rank, address in self.addresses.items():
            numbers = _read(address)
            if numbers is None:
                continue
            before, since = self._seen.get(rank, (None, now))
            if before != numbers:
                self._seen[rank] = numbers, now
                since = now
            mark, run, waits_for = numbers
            trouble = _trouble(address.pid)
            found[rank] = Position(mark, run, waits_for, seconds=now - since, trouble=trouble)
        return found


def fresh_progress() -> list[int]:
    """Of a rank that has run nothing yet."""
    return [NOWHERE, 0, NOWHERE]


def _read(address: Address) -> tuple[int, ...] | None:
    try:
        file = os.open(f"/proc/{address.pid}/fd/{address.file}", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        *numbers, key = _NUMBERS.unpack(os.pread(file, _NUMBERS.size, 0))
    except (OSError, struct.error):
        return None
    finally:
        os.close(file)
    return tuple(numbers) if key == address.key else None


def _trouble(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        state = stat.rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "its process is gone"
    return {"T": "its process is stopped", "t": "a debugger holds it"}.get(state, "")
