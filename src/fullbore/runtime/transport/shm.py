"""Ranks of one Linux host exchange messages through shared memory.

Large tensors are copied once, by the sender, into memory that the receiver uses in place; a socket
for every two ranks says what lies where. A peer's death is noticed at once, and nothing with a name
is ever made that could be left behind.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Collection, Mapping

from fullbore.errors import ParameterError
from fullbore.runtime.transport.base import Edge
from fullbore.runtime.transport.linked import LinkedTransport, check_size
from fullbore.runtime.transport.shm_link import SharedMemoryLink


def socket_pairs(num_ranks: int) -> list[dict[int, socket.socket]]:
    """A socket for every two ranks: ``[rank][peer]`` is the end that ``rank`` keeps.

    Raises:
        ParameterError: not on Linux.
    """
    _require_linux()
    ends: list[dict[int, socket.socket]] = [{} for _ in range(num_ranks)]
    for low in range(num_ranks):
        for high in range(low + 1, num_ranks):
            ends[low][high], ends[high][low] = socket.socketpair(
                socket.AF_UNIX, socket.SOCK_SEQPACKET
            )
    return ends


def _require_linux() -> None:
    if not sys.platform.startswith("linux"):
        raise ParameterError("shared memory between ranks needs Linux; use P2PTransport here")


class SharedMemoryTransport(LinkedTransport):
    """Plays one rank in a process of its own, next to the other ranks' on this host. CPU tensors
    only. :func:`fullbore.runtime.launch.launch` makes it.

    Args:
        rank: the rank that this process plays.
        sockets: connections to all other ranks, from :func:`socket_pairs`.
        timeout: seconds that a message may take before it counts as lost.
        max_ahead: how many messages a rank may send on one edge before their receives are posted.

    Raises:
        ParameterError: not on Linux.
    """

    def __init__(
        self,
        rank: int,
        sockets: Mapping[int, socket.socket],
        *,
        timeout: float = 300.0,
        max_ahead: int = 16,
    ) -> None:
        _require_linux()
        super().__init__(rank, timeout=timeout, max_ahead=max_ahead)
        self._adopt(
            SharedMemoryLink(peer, sock, self._wait_writable) for peer, sock in sockets.items()
        )

    def connect(self, num_ranks: int, edges: Collection[Edge]) -> None:
        """Make the inboxes; the connections are there already.

        Raises:
            TransportError: the transport was made for another number of ranks.
        """
        check_size(num_ranks, len(self._links) + 1)
        self._open(edges)
        if self._page.address is not None:
            for link in self._links.values():
                link.introduce(self._page.address.encode())
