"""Two ranks on one Linux host: packets through a socket, large tensors through shared memory.

The socket keeps packets apart (``SOCK_SEQPACKET``) and can carry open files, which is how the
receiver gets at the sender's segments.
"""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import select
import socket
from collections.abc import Callable, Sequence

from torch import Tensor

from fullbore.errors import ParameterError
from fullbore.runtime.transport.link import (
    DONT_WAIT,
    LARGE,
    NEW_SEGMENT,
    NOTHING,
    OLD_SEGMENT,
    PACKET,
    SOMETHING,
    Incoming,
    Link,
    LinkLost,
    Outgoing,
)
from fullbore.runtime.transport.memory import Leases, Segments
from fullbore.runtime.wire import Layout, copies, fill, unpack, views

_COPY_BYTES = 65536
"""Up to this size, the receiver copies a message out of its segment: it is cheaper than a lease."""

_SOCKET_BYTES = 1 << 20
"""Asked for, to hold the packets of many messages; with less, sends wait earlier."""

_ABORT_MS = 1000


class SharedMemoryLink(Link):
    """A link between two processes of one host.

    Args:
        peer: the other rank.
        sock: connected, ``SOCK_SEQPACKET``.
        wait_writable: called when the socket is full; returns when it may have room.
    """

    inline_bytes = 16384  # the socket should hold the packets of several messages

    def __init__(
        self, peer: int, sock: socket.socket, wait_writable: Callable[[Link], None]
    ) -> None:
        super().__init__(peer, sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self._wait_writable = wait_writable
        self._segments, self._leases = Segments(), Leases()
        self._returned = self._leases.returned

    def flush(self) -> None:
        """See ``Link.flush``; gives up segments that were idle for long."""
        for number in self._segments.age():
            for known in self._outgoing.values():
                known.places_in.pop(number, None)
            self._put_if_possible(self._packet(OLD_SEGMENT, segment=number))
        super().flush()

    def _fetch(self, flags: int) -> int:
        try:
            size = self._sock.recv_into(self._in, 0, flags)
        except BlockingIOError:
            return NOTHING
        except ConnectionResetError:
            # The peer closed with packets of ours unread. Those it sent before are still there.
            return SOMETHING
        if size:
            return PACKET
        self.gone = True
        return SOMETHING

    def _take_back(self, numbers: Sequence[int]) -> None:
        self._segments.give_back(numbers)

    def _check(self, layout: Layout) -> None:
        if layout.device:
            raise ParameterError(
                "shared memory carries CPU tensors only; use P2PTransport for other devices"
            )

    def _put(self, packet: bytes | memoryview) -> None:
        try:
            self._sock.send(packet, DONT_WAIT)
        except OSError:
            self._insist(lambda: self._sock.send(packet, DONT_WAIT))

    def _insist(self, send: Callable[[], int]) -> None:
        while True:
            try:
                send()
                return
            except BlockingIOError:
                self._wait_writable(self)
            except OSError as error:
                # It may have said why it ended.
                while not self.gone and self.read():
                    pass
                self.gone = True
                raise LinkLost from error

    def _put_if_possible(self, packet: bytes) -> None:
        writable = select.poll()
        writable.register(self._sock, select.POLLOUT)
        if not writable.poll(_ABORT_MS):
            return
        # A peer that is gone, or reads nothing for so long, sees the end of the connection.
        with contextlib.suppress(OSError):
            self._sock.send(packet, DONT_WAIT)

    def _send_large(self, known: Outgoing, tensors: Sequence[Tensor], tag: int) -> None:
        nbytes = known.layout.nbytes
        segment = self._segments.take(nbytes)
        if segment is None:
            segment = self._make_segment(nbytes)
        places = known.places_in.get(segment)
        if places is None:
            buffer = self._segments.buffer(segment)
            places = known.places_in[segment] = views(known.layout, buffer)
        fill(places, tensors)
        self._write_head(LARGE, known.number, 0, segment=segment, tag=tag)
        self._put(self._head)

    def _make_segment(self, nbytes: int) -> int:
        # Perhaps the peer has returned one.
        while not self.gone and self.read():
            number = self._segments.take(nbytes)
            if number is not None:
                return number
        number, file = self._segments.make(nbytes)
        try:
            self._put(self._packet(NEW_SEGMENT, segment=number))
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))]
            self._insist(lambda: self._sock.sendmsg([b"f"], rights, DONT_WAIT))
        finally:
            os.close(file)
        return number

    def _receive_large(self, known: Incoming, segment: int, envelope: tuple[int, int]) -> None:
        layout = known.layout
        if layout.nbytes <= _COPY_BYTES:
            places = known.places_in.get(segment)
            if places is None:
                places = known.places_in[segment] = views(layout, self._leases.buffer(segment))
            self._deliver(*envelope, self._complete(layout, copies(places)))
            self._returned.append(segment)
            return
        memory = self._leases.lease(segment, layout.nbytes)
        self._deliver(*envelope, self._complete(layout, unpack(layout, memory)))

    def _obey(self, kind: int, number: int, *, segment: int, body: bytes) -> None:
        if kind == NEW_SEGMENT:
            self._receive_segment(segment)
        elif kind == OLD_SEGMENT:
            self._leases.remove(segment)
            for known in self._incoming.values():
                known.places_in.pop(segment, None)
        else:
            super()._obey(kind, number, segment=segment, body=body)

    def _receive_segment(self, number: int) -> None:
        # The file follows at once, in a packet of its own: only recvmsg() takes files, and reading
        # every packet with it would cost more.
        data, files, _, _ = self._sock.recvmsg(1, socket.CMSG_SPACE(4))
        if not data:
            self.gone = True
            return
        file = array.array("i", files[0][2])[0]
        try:
            self._leases.add(number, mmap.mmap(file, os.fstat(file).st_size))
        finally:
            os.close(file)
