"""One rank's connection to another one on the same host: what is said over the socket.

A message is one packet of a ``SOCK_SEQPACKET`` socket: a head; the numbers of segments that its
sender has done with; and, if it is small, its tensors. Larger tensors lie in a segment. The socket
calls are the only synchronisation between the two processes.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fullbore.runtime.transport.shm_memory import Leases, Segments
from fullbore.runtime.tree import Tree
from fullbore.runtime.wire import (
    Describer,
    Layout,
    LayoutNumbers,
    copy_out,
    decode,
    encode,
    fill,
    views,
    wrap,
)

INLINE_BYTES = 16384
"""Up to this size, tensors travel in the packet: copying them twice is cheaper than a segment."""

_SOCKET_BYTES = 1 << 20
"""Asked for, to hold many such packets; the system may grant less, and sends wait earlier."""

_HEAD = struct.Struct("<BBxxIIIQQ")
"""kind, number of returned segments, generation, layout, segment, receives posted, tag."""

_BODY = 128
"""Where tensors start in a packet; returned segments' numbers lie between head and body."""

_MAX_RETURNED = (_BODY - _HEAD.size) // 4
_CHUNK = INLINE_BYTES
_ABORT_MS = 1000
_INLINE, _SEGMENT, _LAYOUT, _NEW_SEGMENT, _OLD_SEGMENT, _CREDIT, _ABORT, _BYE = range(8)


class LinkLost(Exception):
    """The other side is gone; what it said last has been read."""


@dataclass(slots=True)
class _Outgoing:
    """What sending one layout takes, prepared."""

    layout: Layout
    number: int
    packet: memoryview | None
    places: Sequence[Tensor]
    places_in: dict[int, Sequence[Tensor]] = field(default_factory=dict)


class Link:
    """Both directions between this rank and ``peer``.

    Args:
        peer: the other rank.
        sock: a connected ``SOCK_SEQPACKET`` socket.
        wait_writable: called when the socket is full; returns when it may have room.

    Attributes:
        arrived: messages not yet taken: (generation, tag, value).
        sent, acknowledged: messages sent to the peer, and receives that it has posted.
        posted: receives posted here.
        generation: counts resets. What a peer sent before its reset is dropped.
        peer_generation: the generation of the peer's latest message.
        aborted: rank and reason of a failure that the peer told.
        gone: the peer's process has ended or closed the connection.
        closed: ... on purpose.
    """

    def __init__(
        self, peer: int, sock: socket.socket, wait_writable: Callable[[Link], None]
    ) -> None:
        self.peer, self._sock, self._wait_writable = peer, sock, wait_writable
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self.arrived: deque[tuple[int, int, Tree]] = deque()
        self.sent = self.acknowledged = self.posted = self._reported = 0
        self.generation = self.peer_generation = self._ahead = 0
        self.aborted: tuple[int, str] | None = None
        self.gone = self.closed = False
        self._describe, self._numbers = Describer(), LayoutNumbers()
        self._outgoing: dict[int, _Outgoing] = {}
        self._segments, self._leases = Segments(), Leases()
        self._layouts: dict[int, tuple[Layout, Sequence[Tensor]]] = {}
        self._layout_text = b""
        self._out = bytearray(_BODY + INLINE_BYTES)
        self._in = bytearray(_BODY + INLINE_BYTES)
        self._payload = torch.frombuffer(self._in, dtype=torch.uint8)[_BODY:]
        packet = memoryview(self._out)
        self._heads = [packet[: _HEAD.size + 4 * n] for n in range(_MAX_RETURNED + 1)]

    def fileno(self) -> int:
        """The socket's."""
        return self._sock.fileno()

    def send(self, tag: int, value: Tree) -> None:
        """Send a message; copies its tensors.

        Raises:
            LinkLost: the peer is gone.
            ParameterError: ``value`` cannot be sent.
        """
        layout, tensors = self._describe(value)
        number = self._numbers.find(layout)
        known = self._announce(layout) if number is None else self._outgoing[number]
        self.sent += 1
        if known.packet is not None:
            fill(known.places, tensors)
            self._write_head(_INLINE, known.number, 0, tag)
            self._put(known.packet)
            return
        segment = self._segments.take(layout.nbytes)
        if segment is None:
            segment = self._make_segment(layout.nbytes)
        places = known.places_in.get(segment)
        if places is None:
            places = known.places_in[segment] = views(layout, self._segments.buffer(segment))
        fill(places, tensors)
        self._put(self._heads[self._write_head(_SEGMENT, known.number, segment, tag)])

    def post(self, every: int) -> None:
        """Count one more posted receive, and tell the peer about every so many."""
        self.posted += 1
        if self.posted - self._reported >= every:
            self._credit()

    def flush(self) -> None:
        """Tell the peer all that it does not know yet; a step is over."""
        for number in self._segments.age():
            for known in self._outgoing.values():
                known.places_in.pop(number, None)
            self._say(_OLD_SEGMENT, segment=number)
        if self._leases.returned or self.posted != self._reported:
            self._credit()

    def abort(self, rank: int, reason: str) -> None:
        """Tell the peer that ``rank`` failed, if it can still be told."""
        writable = select.poll()
        writable.register(self._sock, select.POLLOUT)
        if not writable.poll(_ABORT_MS):
            return
        # A peer that is gone, or reads nothing for so long, sees the end of the connection.
        with contextlib.suppress(OSError):
            self._sock.send(self._packet(_ABORT, number=rank, body=reason.encode()[:_CHUNK]))

    def reset(self, generation: int) -> None:
        """Drop what belongs to earlier generations."""
        self.generation = generation
        self.arrived = deque(item for item in self.arrived if item[0] >= generation)
        self.sent = self.posted = self._reported = 0
        self.acknowledged = self._ahead if self.peer_generation == generation else 0
        self.aborted = None

    def close(self) -> None:
        """Say goodbye and close the socket. Tensors in leased segments stay valid."""
        with contextlib.suppress(OSError):
            self._sock.send(self._packet(_BYE), socket.MSG_DONTWAIT)
        self.abandon()

    def abandon(self) -> None:
        """Close the socket without a word: it belongs to another process."""
        self._sock.close()

    def read(self) -> bool:
        """Take in the next packet, if there is one; does not wait."""
        try:
            size = self._sock.recv_into(self._in, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            # The peer closed with packets of ours unread. Those it sent before are still there.
            return True
        if not size:
            self.gone = True
            return True
        kind, returned, generation, number, segment, posted, tag = _HEAD.unpack_from(self._in)
        if returned:
            self._segments.give_back(struct.unpack_from(f"<{returned}I", self._in, _HEAD.size))
        self.peer_generation = generation
        if generation == self.generation:
            self.acknowledged = posted
        elif generation > self.generation:
            self._ahead = posted
        if kind == _INLINE:
            layout, places = self._layouts[number]
            self._deliver(generation, tag, copy_out(layout, places))
        elif kind == _SEGMENT:
            layout, _ = self._layouts[number]
            memory = self._leases.lease(segment, layout.nbytes)
            self._deliver(generation, tag, wrap(layout, memory))
        else:
            self._obey(kind, number, segment, bytes(self._in[_HEAD.size : size]))
        return True

    def _deliver(self, generation: int, tag: int, value: Tree) -> None:
        if generation >= self.generation:
            self.arrived.append((generation, tag, value))

    def _obey(self, kind: int, number: int, segment: int, body: bytes) -> None:
        if kind == _LAYOUT:
            self._layout_text += body
            if segment:  # this was the last piece
                layout = decode(self._layout_text)
                fits = layout.nbytes <= INLINE_BYTES
                self._layouts[number] = layout, views(layout, self._payload) if fits else ()
                self._layout_text = b""
        elif kind == _NEW_SEGMENT:
            self._receive_segment(segment)
        elif kind == _OLD_SEGMENT:
            self._leases.remove(segment)
        elif kind == _ABORT and self.peer_generation >= self.generation:
            self.aborted = number, body.decode(errors="replace")
        elif kind == _BYE:
            self.closed = True

    def _receive_segment(self, number: int) -> None:
        # The file follows in a packet of its own, and at once: only recvmsg() takes files, and
        # costs more.
        data, files, _, _ = self._sock.recvmsg(1, socket.CMSG_SPACE(array.array("i").itemsize))
        if not data:
            self.gone = True
            return
        self._leases.add(number, array.array("i", files[0][2])[0])

    def _announce(self, layout: Layout) -> _Outgoing:
        text = encode(layout)
        number = self._numbers.assign(layout)
        for start in range(0, len(text), _CHUNK):
            last = start + _CHUNK >= len(text)
            self._say(_LAYOUT, number=number, segment=last, body=text[start : start + _CHUNK])
        known = self._outgoing[number] = _Outgoing(layout, number, None, ())
        if layout.nbytes <= INLINE_BYTES:
            known.places = views(layout, torch.frombuffer(self._out, dtype=torch.uint8)[_BODY:])
            known.packet = memoryview(self._out)[: _BODY + layout.nbytes]
        return known

    def _make_segment(self, nbytes: int) -> int:
        # Perhaps the peer has returned one.
        while self.read() and not self.gone:
            number = self._segments.take(nbytes)
            if number is not None:
                return number
        number, file = self._segments.make(nbytes)
        try:
            self._say(_NEW_SEGMENT, segment=number)
            self._put_file(file)
        finally:
            os.close(file)
        return number

    def _put_file(self, file: int) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))]
        self._attempt(lambda: self._sock.sendmsg([b"f"], rights, socket.MSG_DONTWAIT))

    def _credit(self) -> None:
        self._put(self._heads[self._write_head(_CREDIT, 0, 0, 0)])

    def _say(self, kind: int, *, number: int = 0, segment: int = 0, body: bytes = b"") -> None:
        self._put(self._packet(kind, number=number, segment=segment, body=body))

    def _packet(self, kind: int, *, number: int = 0, segment: int = 0, body: bytes = b"") -> bytes:
        self._reported = self.posted
        return _HEAD.pack(kind, 0, self.generation, number, segment, self.posted, 0) + body

    def _write_head(self, kind: int, number: int, segment: int, tag: int) -> int:
        returned = self._leases.returned
        count = min(len(returned), _MAX_RETURNED) if returned else 0
        if count:
            numbers = [returned.popleft() for _ in range(count)]
            struct.pack_into(f"<{count}I", self._out, _HEAD.size, *numbers)
        self._reported = posted = self.posted
        _HEAD.pack_into(self._out, 0, kind, count, self.generation, number, segment, posted, tag)
        return count

    def _put(self, packet: bytes | memoryview) -> None:
        try:
            self._sock.send(packet, socket.MSG_DONTWAIT)
        except OSError:
            self._attempt(lambda: self._sock.send(packet, socket.MSG_DONTWAIT))

    def _attempt(self, send: Callable[[], int]) -> None:
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
