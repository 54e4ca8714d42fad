"""What of the Monarch engine lives in Monarch's processes, and how Monarch is set up here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from fullbore.errors import MissingExtra

if find_spec("monarch") is None:
    raise MissingExtra("engine='monarch' needs torchmonarch: pip install 'fullbore[monarch]'")

# How often Monarch looks whether processes live: every few seconds if it is not told. A process
# that ends while Monarch asks for its state is not noticed for half a minute, so that asking all
# the time does not help either.
os.environ.setdefault("HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY", "1s")

import monarch.actor
from monarch.actor import Actor, MeshFailure, config, endpoint

from fullbore.controller.seat import Seat

# This package's messages name the rank. Monarch would write [actor=...] before each, repeatedly.
config.prefix_python_logs_with_actor = False

_AFTERMATH_SECONDS = 60.0
"""News of a process's end may come late, and piece by piece."""


class RankActor(Actor):  # type: ignore[misc] # Monarch is not typed
    """A ``Seat`` as an actor.

    Args:
        rank, paths, threads, seed: of ``Seat``.
    """

    def __init__(self, rank: int, paths: Sequence[str], threads: int, seed: int) -> None:
        self._seat = Seat(rank, paths, threads, seed)

    @endpoint  # type: ignore[untyped-decorator] # Monarch is not typed
    def ask(self, message: bytes) -> bytes:
        """``Seat.answer``."""
        return self._seat.answer(message)


class FaultHook:
    """Keeps Monarch from ending this program because a rank's process has ended: the engine tells
    of it by an exception. Other faults go to the hook that there was.

    Attributes:
        texts: what Monarch said of each mesh that was hurt, by the mesh's name.
    """

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []
        self._before: Callable[[MeshFailure], None] | None = None
        self._is_hurt: Callable[[], bool] = lambda: False
        self._until = 0.0

    def install(self, is_hurt: Callable[[], bool]) -> None:
        """Begin.

        Args:
            is_hurt: whether a process of the engine's has ended.
        """
        self._is_hurt = is_hurt
        if self._before is None:
            before = monarch.actor.unhandled_fault_hook
            while isinstance(before, FaultHook) and before.is_over:
                before = before._before
            self._before = before
            monarch.actor.unhandled_fault_hook = self

    @property
    def is_over(self) -> bool:
        """Whether it takes no faults any more, but passes all on."""
        return 0.0 < self._until < time.monotonic()

    def retire(self, *, kills: bool = False) -> None:
        """The engine's processes end now. If one has by itself, or all are killed, news of that
        may still come; the hook then stays until somebody sets another."""
        if kills or self._is_hurt():
            self._until = time.monotonic() + _AFTERMATH_SECONDS
        self._is_hurt = lambda: False
        if not self._until and monarch.actor.unhandled_fault_hook is self:
            monarch.actor.unhandled_fault_hook = self._before
            self._before = None

    def __call__(self, failure: Any) -> None:
        """Monarch tells of a fault."""
        if self._is_hurt() or time.monotonic() < self._until:
            self.texts.append((failure.mesh_name, str(failure)))
            return
        assert self._before is not None
        self._before(failure)
