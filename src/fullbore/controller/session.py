"""What all requests of a controller have in common."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NoReturn

from fullbore.controller.engine import Engine, RankLost
from fullbore.controller.host import Build
from fullbore.controller.recovery import Recovery
from fullbore.errors import ExecutionError

logger = logging.getLogger("fullbore")


class Session:
    """The processes of a pipeline from their start to their end.

    Args:
        engine: has the processes.
        builds: what each of them is told to be.
        recovery: what is held for the loss of a rank; None gives up then.
    """

    def __init__(
        self, engine: Engine, builds: Sequence[Build], recovery: Recovery | None = None
    ) -> None:
        self._engine, self._builds, self._recovery = engine, builds, recovery
        self._started = self._out_of_step = False
        self._broken: str | None = None

    @property
    def num_processes(self) -> int:
        """How many there are."""
        return len(self._builds)

    def start(self) -> None:
        """Start the processes, unless they run.

        Raises:
            ParameterError: the pipeline was closed.
            ExecutionError: a rank was lost before.
            Exception: what the construction of a stage raised.
        """
        if self._broken is not None:
            raise ExecutionError(f"this pipeline cannot be used any more: {self._broken}")
        if self._started:
            return
        try:
            self._engine.start(self._builds)
        except BaseException:
            self._engine.close()
            raise
        self._started = True

    def ask(self, method: str, *args: Any) -> list[Any]:
        """The same request to every process; nothing changes by it."""
        return self._request(method, [args] * self.num_processes, changes=False)

    def change(self, method: str, *args: Any) -> list[Any]:
        """The same request to every process; it changes what they hold."""
        return self._request(method, [args] * self.num_processes, changes=True)

    def change_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """A request with arguments for each process; it changes what they hold."""
        return self._request(method, arguments, changes=True)

    def ask_one(self, process: int, method: str, *args: Any) -> Any:
        """A request to one process alone, which no other has a part in. It cannot be recovered."""
        self.start()
        messages: list[Any] = [None] * self.num_processes
        messages[process] = self._engine.pack(method, [args])[0]
        try:
            return self._send(messages)[process]
        except RankLost as loss:
            self._give_up(loss)

    def hold(self) -> None:
        """A step begins: take the state that is gone back to, if it is time for that."""
        if self._recovery is not None and self._recovery.is_due:
            self._recovery.held(self.ask("snapshot"))

    def close(self) -> None:
        """End the processes. Can be called twice."""
        self._broken = self._broken or "it was closed"
        self._engine.close()

    def _request(
        self, method: str, arguments: Sequence[tuple[Any, ...]], *, changes: bool
    ) -> list[Any]:
        self.start()
        messages = self._engine.pack(method, arguments)
        while True:
            try:
                results = self._send(messages)
                break
            except RankLost as loss:
                self._recover(loss)
            except BaseException:
                if self._recovery is not None:
                    self._recovery.failed()
                raise
        if self._recovery is not None:
            self._recovery.done(method, messages, changes=changes)
        return results

    def _send(self, messages: Sequence[Any]) -> list[Any]:
        if self._out_of_step:
            self._realign()
        try:
            return self._engine.ask(messages)
        except BaseException:
            self._out_of_step = True
            raise

    def _realign(self) -> None:
        """After a failure: some processes had finished the request, and have not heard of it."""
        everywhere = range(self.num_processes)
        counts = self._engine.ask(self._engine.pack("failures", [() for _ in everywhere]))
        latest = max(counts)
        self._engine.ask(self._engine.pack("catch_up", [(latest,) for _ in everywhere]))
        self._out_of_step = False

    def _recover(self, loss: RankLost) -> None:
        """Start anew from the state that is held. A rank that is lost meanwhile counts, too."""
        while True:
            if self._recovery is None or not self._recovery.may_try():
                self._give_up(loss)
            logger.warning("%s; all ranks are started anew, from the last state held", loss)
            try:
                self._engine.restart()
                self._out_of_step = False
                for messages in self._recovery.replay(self._engine):
                    self._engine.ask(messages)
                return
            except RankLost as another:
                loss = another

    def _give_up(self, loss: RankLost) -> NoReturn:
        hint = "" if self._recovery else "; with recover=True all ranks are started anew"
        self._broken = f"{loss}{hint}"
        self._engine.close()
        raise loss
