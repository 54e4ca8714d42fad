"""What ``recover=`` holds: the last state, and the requests since."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fullbore.controller.engine import Engine
from fullbore.controller.snapshot import Snapshot
from fullbore.errors import ParameterError

MAX_TRIES = 2
"""How often ranks are started anew for one request. A rank that is lost once more would be lost
every time."""

_SETUP = ("configure_optimizers", "watch")
"""Requests that must have been made before a state can be restored; the last of each counts."""

_ONCE = ("load_checkpoint", "evaluate")
"""Requests after which a state is held before the next step: made again later, one may have
another outcome, and the other is nothing to keep the batches of for long."""


def make_recovery(recover: bool | int, engine: Engine) -> Recovery | None:  # noqa: FBT001 - the user's argument
    """What ``recover=`` means; None where nothing is held.

    Raises:
        ParameterError: it makes no sense, or the engine's processes cannot be started anew.
    """
    if recover is False:
        return None
    engine.check_restart()
    return Recovery(1 if recover is True else recover)


class Recovery:
    """Brings new processes to where the lost ones were.

    Args:
        every: steps between two states that are held. Those since the last one are run again.

    Raises:
        ParameterError: ``every`` is no number of steps.
    """

    def __init__(self, every: int) -> None:
        if type(every) is not int or every < 1:
            raise ParameterError(
                f"recover must be True, False, or a number of steps from 1 on; got {every!r}"
            )
        self._every = every
        self._snapshots: list[Snapshot] = []
        self._setup: dict[str, Sequence[Any]] = {}
        self._since: list[tuple[str, Sequence[Any]]] = []
        self._steps = self._tries = 0

    @property
    def is_due(self) -> bool:
        """Whether a state is to be taken before the next step."""
        return self._steps >= self._every or not self._snapshots

    def held(self, snapshots: Sequence[Snapshot]) -> None:
        """Hold the state of all processes; what was before is not needed any more."""
        self._snapshots = list(snapshots)
        self._setup |= {method: sent for method, sent in self._since if method in _SETUP}
        self._since, self._steps = [], 0

    def done(self, method: str, messages: Sequence[Any], *, changes: bool) -> None:
        """A request has been answered by all processes."""
        self._tries = 0
        if changes:
            self._since.append((method, messages))
            self._steps += method == "train"
        if method in _ONCE:
            self.failed()

    def failed(self) -> None:
        """A request has failed in a stage. It may have changed gradients or drawn random numbers,
        and is not run again: a state is held before the next step."""
        self._steps = self._every

    def may_try(self) -> bool:
        """Whether to start anew once more; counts."""
        self._tries += 1
        return self._tries <= MAX_TRIES

    def replay(self, engine: Engine) -> Iterator[Sequence[Any]]:
        """The messages that bring new processes to where the old ones were."""
        yield from self._setup.values()
        if self._snapshots:
            yield engine.pack("restore", [(snapshot,) for snapshot in self._snapshots])
        yield from (messages for _, messages in self._since)
