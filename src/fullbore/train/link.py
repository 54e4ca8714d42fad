"""How the processes of a run agree: all ask the director, and all get the same answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

import torch.distributed as dist

Answer = Callable[[Sequence[Any]], Any]
"""Takes one message of each process, in the order of the ranks; gives the reply to all."""


class Link(Protocol):
    """One process's line to the director. All processes ask the same questions in the same
    order; the director answers each once, when everybody has asked it."""

    def ask(self, message: Any) -> Any:
        """Send a message and wait for the reply."""


class DirectLink:
    """The only process is the director's."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def ask(self, message: Any) -> Any:
        """The reply to the only message there is."""
        return self._answer([message])


class ChildLink:
    """A process that ``launch`` started: messages go up with its reports, replies come down a
    pipe. ``Switchboard`` is the other end.

    Args:
        report: as ``launch`` gives it.
        rank: this process's.
        replies: the pipes of all ranks.
    """

    def __init__(
        self, report: Callable[[Any], None], rank: int, replies: Sequence[Connection]
    ) -> None:
        self._report, self._replies = report, replies[rank]
        for other, pipe in enumerate(replies):
            if other != rank:
                pipe.close()

    def ask(self, message: Any) -> Any:
        """Wait for the other processes to ask as well."""
        self._report(message)
        return self._replies.recv()


class Switchboard:
    """The end of all ``ChildLink`` lines, in the process that called ``launch``.

    Args:
        answer: the director's.
        num_ranks: how many processes there are.
    """

    def __init__(self, answer: Answer, num_ranks: int) -> None:
        self._answer = answer
        pipes = [Pipe(duplex=False) for _ in range(num_ranks)]
        self.replies = [pipe[0] for pipe in pipes]
        self._pipes = [pipe[1] for pipe in pipes]
        self._waiting: dict[int, Any] = {}

    def receive(self, rank: int, message: Any) -> None:
        """Take a rank's message; when all have asked, answer all."""
        self._waiting[rank] = message
        if len(self._waiting) < len(self._pipes):
            return
        # All ranks have their ends by now. A write to one that dies must fail, not wait.
        for pipe in self.replies:
            pipe.close()
        messages = [self._waiting[rank] for rank in range(len(self._pipes))]
        self._waiting.clear()
        reply = self._answer(messages)
        for pipe in self._pipes:
            # ``launch`` reports a dead rank, with its reason.
            with suppress(BrokenPipeError):
                pipe.send(reply)

    def close(self) -> None:
        """Release the pipes."""
        for pipe in (*self.replies, *self._pipes):
            pipe.close()


class GroupLink:
    """A process of a ``torch.distributed`` group; the director sits on its rank 0.

    Args:
        group: carries objects, over gloo.
        answer: the director's, on rank 0; None elsewhere.
    """

    def __init__(self, group: dist.ProcessGroup, answer: Answer | None) -> None:
        self._group, self._answer = group, answer

    def ask(self, message: Any) -> Any:
        """Gather the messages on rank 0, and send its reply to all."""
        messages: list[Any] | None = None
        if self._answer is not None:
            messages = [None] * self._group.size()
        dist.gather_object(message, messages, group=self._group, group_dst=0)
        reply = [None if self._answer is None else self._answer(messages or [])]
        dist.broadcast_object_list(reply, group=self._group, group_src=0)
        return reply[0]
