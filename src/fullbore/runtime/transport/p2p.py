"""Ranks of a process group exchange messages, on one host or many.

torch.distributed brings the ranks together and moves tensors of other devices (NCCL). Messages and
CPU tensors go through a stream socket for every two ranks that exchange any: gloo's point-to-point
calls cannot be waited for without a thread of their own for every message, cannot be interrupted,
and end the process when a message is larger than what was posted for it.
"""

from __future__ import annotations

import time
from collections.abc import Collection

import torch.distributed as dist

from fullbore.errors import ParameterError, TransportError
from fullbore.runtime.transport.base import Edge
from fullbore.runtime.transport.link import Aborted, LinkLost
from fullbore.runtime.transport.linked import LinkedTransport, check_size
from fullbore.runtime.transport.lookout import Log, Lookout, News
from fullbore.runtime.transport.p2p_device import DeviceChannel, Later, device_backend
from fullbore.runtime.transport.p2p_link import StreamLink
from fullbore.runtime.transport.p2p_rendezvous import connect_all, decline, open_store
from fullbore.runtime.transport.position import RUN, Position
from fullbore.runtime.tree import Tree

_TICK = 0.001
_LINGER = 2.0
_LOST_SECONDS = 5.0
"""A rank may go on without the store, but not wait for long: nobody could tell it of a failure."""


class P2PTransport(LinkedTransport):
    """Plays this process's rank of ``group``.

    Args:
        group: the ranks of the pipeline; the default group if None. Other groups of the same world
            may run pipelines of their own.
        timeout: seconds that a message, or a connection, may take before it counts as lost.
        max_ahead: how many messages a rank may send on one edge before their receives are posted.

    Raises:
        ParameterError: torch.distributed is not initialised, or this process is not in the group.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        timeout: float = 300.0,
        max_ahead: int = 16,
    ) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise ParameterError(
                "P2PTransport needs torch.distributed.init_process_group() to be called before"
            )
        rank = dist.get_rank(group)
        if rank < 0:
            raise ParameterError("this process is not in the group that P2PTransport was given")
        super().__init__(rank, timeout=timeout, max_ahead=max_ahead)
        self._group, self._is_new = group, True
        self._streams: list[StreamLink] = []
        self._lookout: Lookout | None = None
        self._device: DeviceChannel | None = None

    def connect(self, num_ranks: int, edges: Collection[Edge]) -> None:
        """Connect to the ranks that this one shares an edge with.

        Raises:
            TransportError: the group has another number of ranks, or one cannot be reached.
        """
        size = dist.get_world_size(self._group)
        check_size(num_ranks, size)
        self._is_new = False
        self._end()  # of the pipeline before
        self._generation, self._failure = 0, None
        peers = {rank for edge in edges if self._rank in edge for rank in edge} - {self._rank}
        store, world = open_store(self._group)
        sockets, self._onlooker.addresses = connect_all(
            self._group, peers, timeout=self._timeout, store=store, page=self._page.address
        )
        if device_backend(self._group) is not None:
            self._device = DeviceChannel(self._group, edges)
        self._streams = [StreamLink(peer, sock, self._device) for peer, sock in sockets.items()]
        self._adopt(self._streams)
        self._open(edges)
        self._lookout = Lookout(
            store,
            self._rank,
            size,
            progress=self.progress,
            files={link.peer: link.fileno() for link in self._streams},
            world=Log(world),
            ranks=dist.get_process_group_ranks(self._group),
        )

    def recv(self, edge: Edge, tag: int) -> Tree:
        """The message ``tag``; see ``Transport.recv``. Tensors of other devices can be used on the
        current stream."""
        value = super().recv(edge, tag)
        return value.get() if type(value) is Later else value

    def flush(self) -> None:
        """Wait until the system has taken all that was sent.

        Raises:
            PeerFailed: a rank failed or is gone.
            TransportTimeout: a rank does not take what it was sent.
        """
        super().flush()
        deadline = time.monotonic() + self._timeout
        for link in self._streams:
            try:
                while not link.is_out():
                    self._take_in(time.monotonic() + _TICK)
                    if time.monotonic() > deadline:
                        raise self._late(link, "to take what it was sent")
            except LinkLost:
                raise self._fail(link) from None
        if self._device is not None:
            self._device.flush()

    def watch(self, seconds: float, partners: Collection[int] = ()) -> None:
        """See ``Transport.watch``."""
        super().watch(seconds)
        self._check_news(waited=0.0)
        for failure in self._lookout.elsewhere if self._lookout is not None else ():
            if not failure.ranks.isdisjoint(partners):
                own = Aborted(self._rank, failure.text, self.progress[RUN])
                self._spread(own, is_first=True)
                raise self._again()

    def reset(self) -> None:
        """See ``Transport.reset``."""
        news = self._lookout.news if self._lookout is not None else None
        if news is not None:
            self._generation = max(self._generation, news.generation)
        super().reset()
        if self._lookout is not None:
            self._lookout.generation = self._generation

    def positions(self) -> dict[int, Position]:
        """See ``Transport.positions``."""
        seen = super().positions()
        size = dist.get_world_size(self._group)
        if self._lookout is None or len(seen) == size - 1:
            return seen
        return self._lookout.ask() | seen

    def _spread(self, failure: Aborted, *, is_first: bool) -> None:
        super()._spread(failure, is_first=is_first)
        if is_first and self._lookout is not None:
            self._lookout.tell(News(self._generation, *failure))

    def _check_news(self, *, waited: float) -> None:
        lookout = self._lookout
        if lookout is None:
            return
        news = lookout.news
        if news is not None and news.generation >= self._generation:
            failure = Aborted(news.rank, news.reason, news.run)
            if news.generation > self._generation or self._ends_run(failure):
                self._spread(failure, is_first=False)
                raise self._again()
        if lookout.lost is not None and not lookout.left and waited > _LOST_SECONDS:
            raise TransportError(
                f"the store of the process group is lost ({lookout.lost}): the process that hosts "
                "it (rank 0's, torchrun's or the launcher's) is gone, and what became of the other "
                "ranks cannot be known; start all ranks again"
            )

    def abort(self, reason: str) -> None:
        """See ``Transport.abort``. Instead of ``connect``, it tells the ranks that wait in it."""
        if self._is_new:
            self._is_new = False
            decline(self._group, reason)
        super().abort(reason)

    def close(self) -> None:
        """Say goodbye to the other ranks, and give them a moment to do so. Received tensors stay
        valid. The group is left as it is."""
        self._end()
        self._page.close()

    def _end(self) -> None:
        if self._lookout is not None:
            self._lookout.leave()
            self._lookout.close()
            self._lookout = None
        for link in self._streams:
            link.leave()
        deadline = time.monotonic() + _LINGER
        for link in self._streams:
            link.linger(deadline)
        self._streams = []
        self._drop_links()
        if self._device is not None:
            self._device.close()
            self._device = None
