"""The flight record: what a rank did last, for those who ask for it."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from fullbore.errors import ParameterError
from fullbore.ir import Action
from fullbore.runtime.transport.base import Transport

_KEPT = 256

_Around = Callable[[Action], AbstractContextManager[object]]


class _Entry(NamedTuple):
    run: int
    action: Action
    start: float
    end: float | None


def open_flight(folder: str | os.PathLike[str], transport: Transport) -> FlightRecorder:
    """For the ranks that ``transport`` plays; as ``FlightRecorder``."""
    ranks = list(transport.ranks)
    return FlightRecorder(folder, str(ranks[0]) if len(ranks) == 1 else "all")


class FlightRecorder:
    """Remembers a process's last 256 actions, and writes them down if the pipeline fails.

    Args:
        folder: where ``rank-R.jsonl`` goes; it is made when there is something to write.
        name: names the file: the rank that this process plays, or "all".

    Raises:
        ParameterError: ``folder`` is something else than a folder.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str) -> None:
        self._folder, self._name = Path(folder), name
        if self._folder.exists() and not self._folder.is_dir():
            raise ParameterError(f"flight_record must be a folder; {self._folder} is a file")
        self._entries: deque[_Entry] = deque(maxlen=_KEPT)
        # Times of ranks can be compared as far as their hosts' clocks agree.
        self._epoch = time.time() - time.perf_counter()

    def around(self, run: int, inner: _Around | None) -> _Around:
        """Notes an action of ``run`` that is executed inside; ``inner`` goes around it first."""

        def enclose(action: Action) -> AbstractContextManager[object]:
            return _Noted(self._entries, run, action, inner(action) if inner else nullcontext())

        return enclose

    def write(self, error: str) -> Path:
        """Write the record: a JSON object a line, oldest first, and the error last. Gives the file,
        which replaces the one of an earlier failure."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"rank-{self._name}.jsonl"
        lines: list[dict[str, object]] = [
            {
                "run": entry.run,
                "action": str(entry.action),
                "stage": entry.action.leaves[0].stage,
                "microbatch": entry.action.leaves[0].microbatch,
                "start": self._epoch + entry.start,
                "end": None if entry.end is None else self._epoch + entry.end,
            }
            for entry in self._entries
        ]
        lines.append({"error": error, "time": time.time()})
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
        return path


class _Noted:
    """Around one action."""

    __slots__ = ("_action", "_entries", "_inner", "_run", "_start")

    def __init__(
        self,
        entries: deque[_Entry],
        run: int,
        action: Action,
        inner: AbstractContextManager[object],
    ) -> None:
        self._entries, self._run, self._action, self._inner = entries, run, action, inner
        self._start = 0.0

    def __enter__(self) -> None:
        self._inner.__enter__()
        self._start = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        end = None if kind is not None else time.perf_counter()
        self._entries.append(_Entry(self._run, self._action, self._start, end))
        self._inner.__exit__(kind, *rest)  # type: ignore[arg-type] # passed on as they came
