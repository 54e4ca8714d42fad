"""All ranks in one process: a message is handed over by reference."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection

from fullbore.errors import TransportError
from fullbore.runtime.transport.base import Edge, Inbox, describe_tag
from fullbore.runtime.transport.position import Position, Progress, fresh_progress
from fullbore.runtime.tree import Handed, Tree, detach


class LocalTransport:
    """Plays every rank in this process, without a process group: for tests, notebooks and
    debugging. The pipeline interleaves the ranks so that a message is there when it is needed."""

    def __init__(self) -> None:
        self._num_ranks = 0
        self._inboxes: dict[Edge, Inbox] = {}
        self._queues: dict[Edge, deque[tuple[int, Handed]]] = {}
        self.progress: Progress = fresh_progress()

    @property
    def ranks(self) -> range:
        """All of them."""
        return range(self._num_ranks)

    def connect(self, num_ranks: int, edges: Collection[Edge]) -> None:
        """Make the channels."""
        self._num_ranks = num_ranks
        self.progress = fresh_progress()
        self._inboxes = {edge: Inbox(edge) for edge in edges}
        self._queues = {edge: deque() for edge in edges}

    def send(self, edge: Edge, tag: int, value: Tree) -> None:
        """Hand over ``value``, cut from its graph; the memory is shared."""
        self._queues[edge].append((tag, Handed.of(detach(value))))

    def post(self, edge: Edge, tag: int) -> None:
        """Note that ``tag`` comes next."""
        self._inboxes[edge].post(tag)

    def recv(self, edge: Edge, tag: int) -> Tree:
        """The value sent for ``tag``.

        Raises:
            TransportError: it was not sent yet.
            ParameterError: its sender has changed it in place since.
        """
        queue = self._queues[edge]

        def fetch() -> tuple[int, Handed]:
            if not queue:
                raise TransportError(
                    f"rank {edge[0]} has not sent the message for {describe_tag(tag)}"
                )
            return queue.popleft()

        handed: Handed = self._inboxes[edge].take(tag, fetch)
        return handed.take()

    def positions(self) -> dict[int, Position]:
        """There are no others."""
        return {}

    def watch(self, seconds: float, partners: Collection[int] = ()) -> None:
        """Wait; there is nobody else to fail."""
        time.sleep(seconds)

    def flush(self) -> None:
        """Nothing is ever under way."""

    def abort(self, reason: str) -> None:
        """There is nobody else to tell."""

    def reset(self) -> None:
        """Forget undelivered messages."""
        for edge, inbox in self._inboxes.items():
            inbox.clear()
            self._queues[edge].clear()

    def close(self) -> None:
        """Forget everything."""
        self._inboxes.clear()
        self._queues.clear()
