"""Where the ranks of a pipeline are, and how they are asked for something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from fullbore.controller.host import Build
from fullbore.errors import PeerFailed


class RankLost(PeerFailed):
    """The process of a rank is gone or stopped; ``rank`` says which. Only ``restart`` helps."""


class Engine(Protocol):
    """The processes that play the ranks, each with a ``RankHost``."""

    def place(self, meshes: Any) -> Sequence[Sequence[int]]:
        """The ranks that each process plays. Starts nothing.

        Args:
            meshes: what the user gave: the number of ranks, or places for them.

        Raises:
            ParameterError: the engine has no use for that.
            MissingExtra: what the engine needs is not installed.
        """

    def start(self, builds: Sequence[Build]) -> None:
        """Start the processes, and make a ``RankHost`` in each.

        Raises:
            ParameterError: a part of the pipeline cannot be sent to its process.
            Exception: what the construction of a stage raised.
        """

    def pack(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        """A request for a method of every process's host, each with its own arguments: a message
        each, which can be sent again, whatever becomes of the arguments.

        Raises:
            ParameterError: an argument cannot be sent.
        """

    def ask(self, messages: Sequence[Any]) -> list[Any]:
        """Send what ``pack`` gave; the results. Waits first until no process is busy any more with
        a request that failed elsewhere. A process whose message is None is not asked, and gives
        None.

        Raises:
            RankLost: a process is gone or stopped.
            Exception: what the method raised, as soon as one process has failed by itself.
        """

    def check_restart(self) -> None:
        """Guard of what needs ``restart``.

        Raises:
            ParameterError: the processes cannot be started anew.
        """

    def restart(self) -> None:
        """End all processes, and start anew what ``start`` was given."""

    def close(self) -> None:
        """End all processes; nothing is left. Can be called twice."""
