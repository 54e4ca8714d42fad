"""Memory that two processes of one host share, owned by the sender of the messages in it.

A segment is an anonymous file (``memfd``): it has no name that could be left behind, and goes when
the last process that maps it goes. Making one is slow, so segments are used again: the sender fills
one, the receiver works on it in place and returns it when the last tensor on it dies.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

IDLE_STEPS = 16
"""A segment that nothing used for so many steps is given up: shapes have changed."""


@dataclass(slots=True)
class _Segment:
    buffer: Tensor
    last_used: int


class Segments:
    """The segments that a sender lends to one receiver."""

    def __init__(self) -> None:
        self._all: dict[int, _Segment] = {}
        self._idle: dict[int, list[int]] = {}
        self._made = 0
        self._step = 0

    def take(self, nbytes: int) -> int | None:
        """The number of an idle segment for ``nbytes`` bytes, if there is one."""
        idle = self._idle.get(capacity(nbytes))
        if not idle:
            return None
        number = idle.pop()
        self._all[number].last_used = self._step
        return number

    def make(self, nbytes: int) -> tuple[int, int]:
        """The number of a new segment and its file, which the caller closes."""
        size = capacity(nbytes)
        file = os.memfd_create("fullbore")
        try:
            os.ftruncate(file, size)
            mapping = mmap.mmap(file, size)
        except OSError:
            os.close(file)
            raise
        number = self._made
        self._made += 1
        self._all[number] = _Segment(torch.frombuffer(mapping, dtype=torch.uint8), self._step)
        return number, file

    def buffer(self, number: int) -> Tensor:
        """The segment's memory: 1-d, uint8."""
        return self._all[number].buffer

    def give_back(self, numbers: Iterable[int]) -> None:
        """The receiver has no use for these segments any more."""
        for number in numbers:
            self._idle.setdefault(self._all[number].buffer.numel(), []).append(number)

    def age(self) -> list[int]:
        """A step is over; gives the numbers of segments that were too long idle and are gone."""
        self._step += 1
        if self._step % IDLE_STEPS:
            return []
        before = self._step - IDLE_STEPS
        old = [
            number
            for numbers in self._idle.values()
            for number in numbers
            if self._all[number].last_used < before
        ]
        for number in old:
            self._idle[self._all.pop(number).buffer.numel()].remove(number)
        return old


def capacity(nbytes: int) -> int:
    """The size of segment for ``nbytes`` bytes: 2**k or 1.5 * 2**k pages."""
    size = mmap.PAGESIZE
    while size < nbytes:
        if size + size // 2 >= nbytes and size > mmap.PAGESIZE:
            return size + size // 2
        size *= 2
    return size


class _Lease(weakref.ref[ctypes.Array[ctypes.c_char]]):
    __slots__ = ("segment",)
    segment: int


class Leases:
    """A receiver's view of the segments that one sender lends it.

    ``returned`` holds the numbers of segments that are free again and were not reported yet. They
    get there from whichever thread drops the last tensor.
    """

    def __init__(self) -> None:
        self._mappings: dict[int, mmap.mmap] = {}
        self._leases: dict[int, _Lease] = {}
        self.returned: deque[int] = deque()

    def add(self, number: int, file: int) -> None:
        """Map a new segment; closes ``file``."""
        try:
            self._mappings[number] = mmap.mmap(file, os.fstat(file).st_size)
        finally:
            os.close(file)

    def remove(self, number: int) -> None:
        """The sender has given this segment up."""
        del self._mappings[number]

    def lease(self, number: int, nbytes: int) -> ctypes.Array[ctypes.c_char]:
        """The first ``nbytes`` bytes of a segment. It is returned when this object dies, which
        every tensor made from it keeps alive."""
        memory = (ctypes.c_char * nbytes).from_buffer(self._mappings[number])
        lease = _Lease(memory, self._release)
        lease.segment = number
        self._leases[number] = lease
        return memory

    def _release(self, lease: weakref.ref[ctypes.Array[ctypes.c_char]]) -> None:
        assert isinstance(lease, _Lease)
        del self._leases[lease.segment]
        self.returned.append(lease.segment)
