"""Memory for large messages, used again and again: getting new pages from the system is slow.

The receiver works on a message in place. A *lease* tells when the last tensor on it dies, so that
the memory can take the next message.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor

IDLE_STEPS = 16
"""Memory that nothing used for so many steps is given up: shapes have changed."""

Memory = ctypes.Array[ctypes.c_char]


def capacity(nbytes: int) -> int:
    """How much memory to get for ``nbytes`` bytes: 2**k or 1.5 * 2**k pages."""
    size = mmap.PAGESIZE
    while size < nbytes:
        if size > mmap.PAGESIZE and size + size // 2 >= nbytes:
            return size + size // 2
        size *= 2
    return size


class Shelf:
    """Which numbered pieces of memory are idle, by size, and for how long they have been."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._last_used: dict[int, int] = {}
        self._idle: dict[int, list[int]] = {}
        self._made = self._step = 0

    def take(self, nbytes: int) -> int | None:
        """The number of an idle piece for ``nbytes`` bytes, if there is one."""
        idle = self._idle.get(capacity(nbytes))
        if not idle:
            return None
        number = idle.pop()
        self._last_used[number] = self._step
        return number

    def add(self, nbytes: int) -> int:
        """The number of a new piece of ``capacity(nbytes)`` bytes; it is in use."""
        number = self._made
        self._made += 1
        self._sizes[number] = capacity(nbytes)
        self._last_used[number] = self._step
        return number

    def give_back(self, numbers: Iterable[int]) -> None:
        """These pieces are idle again."""
        for number in numbers:
            self._idle.setdefault(self._sizes[number], []).append(number)

    def age(self) -> list[int]:
        """A step is over; gives the numbers of pieces that were idle for too long, and are gone."""
        self._step += 1
        if self._step % IDLE_STEPS:
            return []
        before = self._step - IDLE_STEPS
        old = [n for idle in self._idle.values() for n in idle if self._last_used[n] < before]
        for number in old:
            self._idle[self._sizes.pop(number)].remove(number)
            del self._last_used[number]
        return old


class _Lease(weakref.ref[Memory]):
    __slots__ = ("number",)
    number: int


class Leases:
    """Pieces of memory that received tensors lie in.

    ``returned`` holds the numbers of pieces that nothing uses any more; they get there from
    whichever thread drops the last tensor.
    """

    def __init__(self) -> None:
        self._mappings: dict[int, mmap.mmap] = {}
        self._leases: dict[int, _Lease] = {}
        self.returned: deque[int] = deque()

    def add(self, number: int, mapping: mmap.mmap) -> None:
        """Bring a piece in."""
        self._mappings[number] = mapping

    def remove(self, number: int) -> None:
        """Give an unused piece up."""
        del self._mappings[number]

    def buffer(self, number: int) -> Tensor:
        """A piece, to be copied from: 1-d, uint8."""
        return torch.frombuffer(self._mappings[number], dtype=torch.uint8)

    def lease(self, number: int, nbytes: int) -> Memory:
        """The first ``nbytes`` bytes of a piece, as an object that every tensor made from it keeps
        alive. When it dies the piece is returned."""
        memory = (ctypes.c_char * nbytes).from_buffer(self._mappings[number])
        lease = _Lease(memory, self._release)
        lease.number = number
        self._leases[number] = lease
        return memory

    def _release(self, lease: weakref.ref[Memory]) -> None:
        assert isinstance(lease, _Lease)
        del self._leases[lease.number]
        self.returned.append(lease.number)


class Segments:
    """Memory that a sender shares with one receiver.

    A segment is an anonymous file (``memfd``, Linux): it has no name that could be left behind, and
    goes with the last process that maps it.
    """

    def __init__(self) -> None:
        self._shelf = Shelf()
        self._buffers: dict[int, Tensor] = {}
        self.take, self.give_back = self._shelf.take, self._shelf.give_back

    def make(self, nbytes: int) -> tuple[int, int]:
        """The number of a new segment and its open file, which the caller closes."""
        size = capacity(nbytes)
        file = os.memfd_create("fullbore")
        try:
            os.ftruncate(file, size)
            mapping = mmap.mmap(file, size)
        except OSError:
            os.close(file)
            raise
        number = self._shelf.add(nbytes)
        self._buffers[number] = torch.frombuffer(mapping, dtype=torch.uint8)
        return number, file

    def buffer(self, number: int) -> Tensor:
        """The segment's memory: 1-d, uint8."""
        return self._buffers[number]

    def age(self) -> list[int]:
        """A step is over; gives the numbers of segments that are given up."""
        old = self._shelf.age()
        for number in old:
            del self._buffers[number]
        return old


class Pool:
    """Memory of this process that messages are received into."""

    def __init__(self) -> None:
        self._shelf, self._leases = Shelf(), Leases()

    def lease(self, nbytes: int) -> Memory:
        """``nbytes`` bytes; they go back to the pool when the last tensor made from them dies."""
        returned = self._leases.returned
        self._shelf.give_back(returned.popleft() for _ in range(len(returned)))
        number = self._shelf.take(nbytes)
        if number is None:
            number = self._shelf.add(nbytes)
            self._leases.add(number, mmap.mmap(-1, capacity(nbytes)))
        return self._leases.lease(number, nbytes)

    def age(self) -> None:
        """A step is over."""
        for number in self._shelf.age():
            self._leases.remove(number)
