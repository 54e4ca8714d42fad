"""Waiting for other replicas, without being lost when they never come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Protocol

from fullbore.errors import TransportError

Watch = Callable[[float], None]
"""``watch(seconds)`` waits about so long, and raises if a rank that matters failed."""


class WatchAll(Protocol):
    """``Transport.watch``."""

    def __call__(self, seconds: float, partners: Collection[int] = ()) -> None:
        """Wait about so long, and raise if a rank of the pipeline or of the partners' failed."""


_MIN_PAUSE, _MAX_PAUSE = 0.00005, 0.01


def wait_for(is_done: Callable[[], bool], watch: Watch) -> None:
    """Wait without blocking inside a collective, which nothing could end.

    Raises:
        ExecutionError: a rank failed meanwhile.
    """
    pause = _MIN_PAUSE
    while not is_done():
        # To watch costs a millisecond.
        wait = watch if pause > 32 * _MIN_PAUSE else time.sleep
        wait(pause)
        pause = min(2 * pause, _MAX_PAUSE)


def run_aside(function: Callable[[], object], watch: Watch) -> None:
    """Run ``function``, which waits for other replicas, in a thread, and wait for that.

    Raises:
        ExecutionError: a rank failed meanwhile; the thread is left alone.
        Exception: what ``function`` raised.
    """
    failures: list[BaseException] = []
    done = threading.Event()

    def work() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            failures.append(error)
        finally:
            done.set()

    threading.Thread(target=work, name="fullbore-collective", daemon=True).start()
    wait_for(done.is_set, watch)
    if failures:
        raise failures[0]


def no_answer(
    stage: int, doing: str, ranks: Collection[int], cause: BaseException
) -> TransportError:
    """What to raise when a collective of the replicas failed."""
    error = TransportError(
        f"stage {stage}: {doing} over global ranks {sorted(ranks)} failed: {cause}. A replica has "
        "failed, or runs another step or schedule; start all of them again"
    )
    error.stage = stage
    return error
