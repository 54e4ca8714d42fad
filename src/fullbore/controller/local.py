"""All ranks in this process: for notebooks, tests and debugging."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

from fullbore.controller.host import Build, RankHost
from fullbore.errors import ParameterError
from fullbore.runtime import LocalTransport


class LocalEngine:
    """One ``RankHost`` plays every rank, one action at a time."""

    def __init__(self) -> None:
        self._host: RankHost | None = None
        self._builds: Sequence[Build] = ()

    def place(self, meshes: Any) -> Sequence[Sequence[int]]:
        """All ranks in one process; of meshes only the number counts.

        Raises:
            ParameterError: it is no number of ranks, and nothing of which there is a number.
        """
        is_many = isinstance(meshes, Sized) and not isinstance(meshes, str)
        count = len(meshes) if is_many else meshes
        if type(count) is not int or count < 1:
            raise ParameterError(
                f"meshes must be a number of ranks from 1 on, or a list of meshes; got {meshes!r}"
            )
        return [range(count)]

    def start(self, builds: Sequence[Build]) -> None:
        """Build all stages here."""
        self._builds = builds
        (build,) = builds
        self._host = RankHost(LocalTransport(), build)

    def pack(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        """Nothing is sent anywhere."""
        return [(method, own) for own in arguments]

    def ask(self, messages: Sequence[Any]) -> list[Any]:
        """Call the method.

        Raises:
            ParameterError: the engine is not started, or closed.
        """
        if self._host is None:
            raise ParameterError("the pipeline has no processes; it was not started, or closed")
        (message,) = messages
        method, own = message
        return [getattr(self._host, method)(*own)]

    def check_restart(self) -> None:
        """It can, though no rank is lost here without the whole program."""

    def restart(self) -> None:
        """Build all stages anew; those that were given as modules are as they are."""
        self.close()
        self.start(self._builds)

    def close(self) -> None:
        """Let the stages go."""
        if self._host is not None:
            self._host.close()
        self._host = None
