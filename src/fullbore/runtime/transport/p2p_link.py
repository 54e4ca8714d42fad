"""Two ranks anywhere: packets and the bytes of large tensors through one stream."""

from __future__ import annotations

import contextlib
import ctypes
import math
import queue
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fullbore.errors import ParameterError
from fullbore.runtime.transport.link import (
    DONT_WAIT,
    HEAD_BYTES,
    LARGE,
    NOTHING,
    PACKET,
    SOMETHING,
    Incoming,
    Link,
    LinkLost,
    Outgoing,
)
from fullbore.runtime.transport.memory import Memory, Pool
from fullbore.runtime.transport.p2p_device import DeviceChannel, Later
from fullbore.runtime.tree import Tree
from fullbore.runtime.wire import Layout, fill, finish, unpack, views

_SIZE = struct.Struct("<I")
_MAX_PIECES = 64
_LOW_WATER = 1 << 19
_LINGER = 2.0


class Outbox:
    """Bytes that a socket had no room for. A thread sends them, so that the rank can go on."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._queue: queue.SimpleQueue[tuple[memoryview, object] | None] = queue.SimpleQueue()
        self._queued = self._done = 0
        self._thread: threading.Thread | None = None
        self.failed = False

    @property
    def pending(self) -> bool:
        """Whether there is something that the system has not taken yet."""
        return self._queued != self._done

    def put(self, piece: memoryview, owner: object = None) -> None:
        """Send ``piece`` after what is pending. Its memory, kept alive by ``owner`` if not by
        itself, must stay as it is."""
        self._queued += 1
        self._queue.put((piece, owner))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="fullbore-outbox", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._queue.put(None)

    def _work(self) -> None:
        writable = select.poll()
        writable.register(self._sock, select.POLLOUT)
        while (item := self._queue.get()) is not None:
            rest = item[0]
            while rest and not self.failed:
                try:
                    rest = rest[self._sock.send(rest, DONT_WAIT) :]
                except BlockingIOError:
                    writable.poll()
                except OSError:
                    self.failed = True  # the link notices
            self._done += 1
            # Or its memory would wait for the next one.
            del item, rest


class _Filling:
    """A large message that is being received."""

    __slots__ = ("envelope", "layout", "memory", "room")

    def __init__(self, layout: Layout, envelope: tuple[int, int], memory: Memory) -> None:
        self.layout, self.envelope, self.memory = layout, envelope, memory
        self.room = memoryview(memory).cast("B")


class StreamLink(Link):
    """A link over a connected stream socket.

    Args:
        peer: the other rank.
        sock: connected.
        device: carries tensors that are not in main memory.
    """

    inline_bytes = 65536

    def __init__(self, peer: int, sock: socket.socket, device: DeviceChannel | None) -> None:
        super().__init__(peer, sock)
        self._outbox = Outbox(sock)
        self._device = device
        self._pool = Pool()
        self._room = memoryview(self._in)
        self._have = self._taken = 0
        self._low_water, self._patience_ms = 1, 0
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._filling: _Filling | None = None

    def set_patience(self, seconds: float) -> None:
        """See ``Link.set_patience``."""
        self._patience_ms = math.ceil(seconds * 1000)
        super().set_patience(seconds)

    def flush(self) -> None:
        """See ``Link.flush``."""
        self._pool.age()
        super().flush()

    def is_out(self) -> bool:
        """Whether the system has taken all that was sent.

        Raises:
            LinkLost: it never will.
        """
        if self._outbox.failed:
            raise self._lost()
        return not self._outbox.pending

    def leave(self) -> None:
        """See ``Link.leave``."""
        deadline = time.monotonic() + _LINGER
        while self._outbox.pending and time.monotonic() < deadline:
            time.sleep(0.001)
        super().leave()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def linger(self, deadline: float) -> None:
        """Read until the peer leaves too: what it has not received yet is lost if the socket is
        closed with something unread."""
        while not self.gone and self._readable.poll(max(0.0, deadline - time.monotonic()) * 1000):
            self.read()

    def close(self) -> None:
        """See ``Link.close``."""
        self._outbox.close()
        super().close()

    def _transmit(self, known: Outgoing, tensors: Sequence[Tensor], tag: int) -> None:
        layout = known.layout
        if not layout.device:
            super()._transmit(known, tensors, tag)
            return
        assert self._device is not None
        packed = [tensor for tensor in tensors if tensor.is_cpu]
        super()._transmit(known, packed, tag)
        self._device.send(self.peer, [tensors[index] for index in layout.device])

    def _complete(self, layout: Layout, packed: Sequence[Tensor]) -> Tree:
        if not layout.device:
            return finish(layout, packed)
        assert self._device is not None
        leaves = [layout.leaves[index] for index in layout.device]
        received, works = self._device.receive(self.peer, leaves)
        from_packed, from_device = iter(packed), iter(received)
        tensors = [next(from_packed if leaf.on_cpu else from_device) for leaf in layout.leaves]
        return Later(finish(layout, tensors), works)

    def _check(self, layout: Layout) -> None:
        if layout.device and self._device is None:
            raise ParameterError(
                "a tensor outside of main memory needs a process group with a backend for its "
                'device: init_process_group("cpu:gloo,cuda:nccl")'
            )

    def _take_back(self, numbers: Sequence[int]) -> None:
        """No memory is lent."""

    def read(self, flags: int = DONT_WAIT) -> bool:
        """See ``Link.read``; takes in all packets that have come with the first."""
        progress = super().read(flags)
        # They are in this process: polling the socket would not tell of them.
        while self._have > self._taken and self._has_packet():
            super().read(flags)
        return progress

    def _fetch(self, flags: int) -> int:
        if self._have and self._has_packet():
            return self._take()
        filling = self._filling
        if filling is not None and not flags:
            # A system call that waits itself is not woken by less than the low water mark, though
            # it has read the rest of that already.
            if not self._readable.poll(self._patience_ms):
                return NOTHING
            flags = DONT_WAIT
        try:
            room = self._room[self._have :] if filling is None else filling.room
            size = self._sock.recv_into(room, 0, flags)
        except BlockingIOError:
            return NOTHING
        except OSError:
            size = 0
        if not size:
            self.gone = True
        elif filling is not None:
            self._fill(filling, size)
        else:
            self._have += size
            if self._is_complete():
                return self._take()
        return SOMETHING

    def _take(self) -> int:
        (size,) = _SIZE.unpack_from(self._in)
        self._taken = HEAD_BYTES + size
        return PACKET

    def _has_packet(self) -> bool:
        """Whether another packet is complete. The one before it is done with."""
        self._shift(self._taken)
        self._taken = 0
        if self._filling is not None:
            self._absorb(self._filling)
        return self._filling is None and self._is_complete()

    def _is_complete(self) -> bool:
        if self._have < HEAD_BYTES:
            return False
        (size,) = _SIZE.unpack_from(self._in)
        return bool(self._have >= HEAD_BYTES + size)

    def _absorb(self, filling: _Filling) -> None:
        """Move what has come with the packet before into a large message's place."""
        taken = min(self._have, len(filling.room))
        if taken:
            filling.room[:taken] = self._room[:taken]
            self._shift(taken)
            self._fill(filling, taken)

    def _shift(self, size: int) -> None:
        left = self._have - size
        if left:
            self._room[:left] = self._room[size : self._have]
        self._have = left

    def _receive_large(self, known: Incoming, segment: int, envelope: tuple[int, int]) -> None:
        layout = known.layout
        self._filling = _Filling(layout, envelope, self._pool.lease(layout.nbytes))

    def _fill(self, filling: _Filling, size: int) -> None:
        filling.room = filling.room[size:]
        self._expect(len(filling.room))
        if filling.room:
            return
        self._filling = None
        layout = filling.layout
        value = self._complete(layout, unpack(layout, filling.memory))
        self._deliver(*filling.envelope, value)

    def _expect(self, nbytes: int) -> None:
        # Being woken for every few kilobytes of a large message costs more than to move them.
        low = min(nbytes, _LOW_WATER) if nbytes > _LOW_WATER // 4 else 1
        if low != self._low_water:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low)
            self._low_water = low

    def _put(self, packet: bytes | memoryview) -> None:
        sent = 0
        if not self._outbox.pending:
            try:
                sent = self._sock.send(packet, DONT_WAIT)
            except BlockingIOError:
                pass  # the outbox takes it all
            except OSError as error:
                raise self._lost() from error
        if sent < len(packet):
            self._outbox.put(memoryview(bytes(packet[sent:])))

    def _put_if_possible(self, packet: bytes) -> None:
        # A peer that is gone need not be told.
        with contextlib.suppress(LinkLost):
            self._put(packet)

    def _send_large(self, known: Outgoing, tensors: Sequence[Tensor], tag: int) -> None:
        self._write_head(LARGE, known.number, 0, tag=tag)
        pieces = list(_pieces(known.layout, tensors))
        sent = 0
        if not self._outbox.pending:
            try:
                parts = [self._head, *(piece for piece, _ in pieces)]
                sent = self._sock.sendmsg(parts, (), DONT_WAIT)
            except BlockingIOError:
                pass  # the outbox takes it all
            except OSError as error:
                raise self._lost() from error
        for piece, owner in ((memoryview(bytes(self._head)), None), *pieces):
            if sent < len(piece):
                self._outbox.put(piece[sent:], owner)
            sent = max(0, sent - len(piece))

    def _lost(self) -> LinkLost:
        # It may have said why it ended.
        while not self.gone and self.read():
            pass
        self.gone = True
        return LinkLost()


def _pieces(layout: Layout, tensors: Sequence[Tensor]) -> Iterator[tuple[memoryview, object]]:
    """The packed tensors' bytes, where they are if possible, and what keeps them alive."""
    if len(tensors) > _MAX_PIECES:
        buffer = torch.empty(layout.nbytes, dtype=torch.uint8)
        fill(views(layout, buffer), tensors)
        yield _bytes(buffer), buffer
        return
    end = 0
    for leaf, tensor in zip(layout.packed, tensors, strict=True):
        if leaf.offset > end:
            yield memoryview(bytes(leaf.offset - end)), None
        if leaf.nbytes:
            dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
            yield _bytes(dense), dense
        end = leaf.offset + leaf.nbytes


def _bytes(tensor: Tensor) -> memoryview:
    nbytes = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * nbytes).from_address(tensor.data_ptr())).cast("B")
