"""What two ranks say to each other over a socket, whatever kind of socket it is.

A packet is a head of fixed size, in which the numbers of returned memory may be, and a body. Small
tensors are the body; large ones take the way of the kind of link. Both directions of two ranks
share a link; there is no other synchronisation between the two processes.
"""

from __future__ import annotations

import socket
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fullbore.runtime.tree import Tree
from fullbore.runtime.wire import (
    Describer,
    Layout,
    LayoutNumbers,
    copies,
    decode,
    encode,
    fill,
    finish,
    quick_key,
    views,
)

INLINE, LARGE, LAYOUT, NEW_SEGMENT, OLD_SEGMENT, CREDIT, ABORT, BYE, PAGE = range(9)
"""What a packet is."""

NOTHING, SOMETHING, PACKET = range(3)
"""What came of looking for a packet."""

DONT_WAIT: int = getattr(socket, "MSG_DONTWAIT", 0)
"""Flag of socket calls. Where it is missing links cannot be made, but this can be imported."""

HEAD_BYTES = 128
"""Where the body starts."""

_HEAD = struct.Struct("<IBBxxIIIQQ")
"""Body's size, kind, count of returned memory, generation, layout, segment, posted, tag."""

_MAX_RETURNED = (HEAD_BYTES - _HEAD.size) // 4
_PIECE_BYTES = 16384


class Aborted(NamedTuple):
    """A failure: of which rank, why, and in which run."""

    rank: int
    reason: str
    run: int


class LinkLost(Exception):
    """The other side is gone; what it said last has been read."""


@dataclass(slots=True)
class Outgoing:
    """What sending one layout takes, prepared.

    ``packet`` is None where the tensors are too large for it; ``places`` are those in the packet,
    ``places_in`` those in each segment.
    """

    layout: Layout
    number: int
    packet: memoryview | None = None
    places: Sequence[Tensor] = ()
    places_in: dict[int, Sequence[Tensor]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Incoming:
    """What receiving one layout takes: the places in the packet, if the tensors are there."""

    layout: Layout
    places: Sequence[Tensor] = ()
    places_in: dict[int, Sequence[Tensor]] = field(default_factory=dict)


class Link(ABC):
    """Both directions between this rank and ``peer``.

    Attributes:
        inline_bytes: up to this size, tensors are copied into the packet and out of it.
        arrived: messages not yet taken: (generation, tag, value).
        sent, acknowledged: messages sent to the peer, and receives that it has posted.
        posted: receives posted here.
        generation: counts resets. What a peer sent before its reset is dropped.
        peer_generation: the generation of the peer's latest packet.
        aborted: the first failure that the peer told since the last reset.
        page: where the peer writes its progress, encoded, if it told.
        gone: the peer's process has ended or closed the connection.
        closed: ... on purpose.
    """

    inline_bytes: ClassVar[int]

    def __init__(self, peer: int, sock: socket.socket) -> None:
        self.peer, self._sock = peer, sock
        sock.setblocking(True)  # every call says whether it waits
        self.arrived: deque[tuple[int, int, Tree]] = deque()
        self.sent = self.acknowledged = self.posted = self._reported = 0
        self.generation = self.peer_generation = self._ahead = 0
        self.aborted: Aborted | None = None
        self.page: bytes | None = None
        self.gone = self.closed = False
        self._returned: deque[int] = deque()
        self._describe, self._numbers = Describer(), LayoutNumbers()
        self._outgoing: dict[int, Outgoing] = {}
        self._quick: dict[Hashable, Outgoing] = {}
        self._incoming: dict[int, Incoming] = {}
        self._layout_text = b""
        size = HEAD_BYTES + max(self.inline_bytes, _PIECE_BYTES)
        self._out, self._in = bytearray(size), bytearray(size)
        self._head = memoryview(self._out)[:HEAD_BYTES]

    def fileno(self) -> int:
        """The socket's."""
        return self._sock.fileno()

    def set_patience(self, seconds: float) -> None:
        """How long a read may wait."""
        whole, part = divmod(seconds, 1)
        limit = struct.pack("ll", int(whole), int(part * 1e6))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def send(self, tag: int, value: Tree) -> None:
        """Send a message.

        Raises:
            LinkLost: the peer is gone.
            ParameterError: ``value`` cannot be sent.
        """
        key = quick_key(value)
        known = self._quick.get(key) if key is not None else None
        tensors: Sequence[Tensor] = value if type(value) is tuple else (value,)
        if known is None:
            layout, tensors = self._describe(value)
            self._check(layout)
            known = self._find(layout)
            if key is not None:
                self._quick[key] = known
        self._transmit(known, tensors, tag)
        self.sent += 1

    def _transmit(self, known: Outgoing, tensors: Sequence[Tensor], tag: int) -> None:
        if known.packet is None:
            self._send_large(known, tensors, tag)
            return
        fill(known.places, tensors)
        self._write_head(INLINE, known.number, known.layout.nbytes, tag=tag)
        self._put(known.packet)

    def post(self, every: int) -> None:
        """Count one more posted receive, and tell the peer about every so many."""
        self.posted += 1
        if self.posted - self._reported >= every:
            self._credit()

    def flush(self) -> None:
        """Tell the peer all that it does not know yet; a step is over."""
        if self._returned or self.posted != self._reported:
            self._credit()

    def abort(self, failure: Aborted) -> None:
        """Tell the peer of a failure, if it can still be told."""
        rank, reason, run = failure
        body = reason.encode()[:_PIECE_BYTES]
        self._put_if_possible(self._packet(ABORT, number=rank, segment=run % 2**32, body=body))

    def reset(self, generation: int) -> None:
        """Drop what belongs to earlier generations."""
        self.generation = generation
        self.arrived = deque(item for item in self.arrived if item[0] >= generation)
        self.sent = self.posted = self._reported = 0
        self.acknowledged = self._ahead if self.peer_generation == generation else 0
        self.aborted = None
        self._credit()  # or a peer that has reset less often would not know

    def introduce(self, page: bytes) -> None:
        """Tell the peer where this rank writes its progress."""
        self._put_if_possible(self._packet(PAGE, body=page))

    def leave(self) -> None:
        """Say goodbye: nothing will be sent any more."""
        self._put_if_possible(self._packet(BYE))

    def close(self) -> None:
        """Close the socket. Received tensors stay valid."""
        self._sock.close()

    def read(self, flags: int = DONT_WAIT) -> bool:
        """Take in what the peer has sent, a packet at most; whether there was anything. Waits only
        if ``flags`` is 0, and for no longer than the socket was told to."""
        fetched = self._fetch(flags)
        if fetched != PACKET:
            return fetched == SOMETHING
        size, kind, returned, generation, number, segment, posted, tag = _HEAD.unpack_from(self._in)
        if returned:
            self._take_back(struct.unpack_from(f"<{returned}I", self._in, _HEAD.size))
        self.peer_generation = generation
        if generation == self.generation:
            self.acknowledged = posted
        elif generation > self.generation:
            self._ahead = posted
        if kind == INLINE:
            known = self._incoming[number]
            self._deliver(generation, tag, self._complete(known.layout, copies(known.places)))
        elif kind == LARGE:
            self._receive_large(self._incoming[number], segment, (generation, tag))
        else:
            body = bytes(self._in[HEAD_BYTES : HEAD_BYTES + size])
            self._obey(kind, number, segment=segment, body=body)
        return True

    @abstractmethod
    def _fetch(self, flags: int) -> int:
        """Read from the socket; a packet is left at the start of ``_in``."""

    @abstractmethod
    def _put(self, packet: bytes | memoryview) -> None:
        """Send a packet; its memory is used again afterwards."""

    @abstractmethod
    def _put_if_possible(self, packet: bytes) -> None:
        """Send a packet if the peer is there."""

    @abstractmethod
    def _send_large(self, known: Outgoing, tensors: Sequence[Tensor], tag: int) -> None:
        """Send a message whose tensors don't fit in a packet."""

    @abstractmethod
    def _receive_large(self, known: Incoming, segment: int, envelope: tuple[int, int]) -> None:
        """Receive such a message; ``envelope`` is (generation, tag)."""

    def _complete(self, layout: Layout, packed: Sequence[Tensor]) -> Tree:
        """The value that these packed tensors belong to."""
        return finish(layout, packed)

    @abstractmethod
    def _check(self, layout: Layout) -> None:
        """Guard of ``send``; raises ParameterError for what this kind of link cannot carry."""

    @abstractmethod
    def _take_back(self, numbers: Sequence[int]) -> None:
        """The peer has done with memory that it was lent."""

    def _deliver(self, generation: int, tag: int, value: Tree) -> None:
        if generation >= self.generation:
            self.arrived.append((generation, tag, value))

    def _obey(self, kind: int, number: int, *, segment: int, body: bytes) -> None:
        if kind == LAYOUT:
            self._layout_text += body
            if segment:  # that was the last piece
                text, self._layout_text = self._layout_text, b""
                self._incoming[number] = self._learn(decode(text))
        elif kind == ABORT and self.peer_generation >= self.generation:
            self.aborted = self.aborted or Aborted(number, body.decode(errors="replace"), segment)
        elif kind == PAGE:
            self.page = body
        elif kind == BYE:
            self.closed = True

    def _learn(self, layout: Layout) -> Incoming:
        if layout.nbytes > self.inline_bytes:
            return Incoming(layout)
        buffer = torch.frombuffer(self._in, dtype=torch.uint8)[HEAD_BYTES:]
        return Incoming(layout, views(layout, buffer))

    def _find(self, layout: Layout) -> Outgoing:
        number = self._numbers.find(layout)
        return self._announce(layout) if number is None else self._outgoing[number]

    def _announce(self, layout: Layout) -> Outgoing:
        text = encode(layout)
        number = self._numbers.assign(layout)
        if number in self._outgoing:
            self._quick.clear()
        for start in range(0, len(text), _PIECE_BYTES):
            piece = text[start : start + _PIECE_BYTES]
            last = start + len(piece) == len(text)
            self._put(self._packet(LAYOUT, number=number, segment=last, body=piece))
        known = self._outgoing[number] = Outgoing(layout, number)
        if layout.nbytes <= self.inline_bytes:
            buffer = torch.frombuffer(self._out, dtype=torch.uint8)[HEAD_BYTES:]
            known.places = views(layout, buffer)
            known.packet = memoryview(self._out)[: HEAD_BYTES + layout.nbytes]
        return known

    def _credit(self) -> None:
        self._write_head(CREDIT, 0, 0)
        try:
            self._put(self._head)
        except LinkLost:
            return  # it needs no credit; whoever waits for one of its messages will notice

    def _packet(self, kind: int, *, number: int = 0, segment: int = 0, body: bytes = b"") -> bytes:
        self._reported = posted = self.posted
        head = _HEAD.pack(len(body), kind, 0, self.generation, number, segment, posted, 0)
        return head.ljust(HEAD_BYTES, b"\0") + body

    def _write_head(
        self, kind: int, number: int, size: int, *, segment: int = 0, tag: int = 0
    ) -> None:
        """Write a head to the start of ``_out``, with as much returned memory as it takes."""
        returned, count = self._returned, 0
        if returned:
            count = min(len(returned), _MAX_RETURNED)
            numbers = [returned.popleft() for _ in range(count)]
            struct.pack_into(f"<{count}I", self._out, _HEAD.size, *numbers)
        self._reported = posted = self.posted
        _HEAD.pack_into(
            self._out, 0, size, kind, count, self.generation, number, segment, posted, tag
        )
