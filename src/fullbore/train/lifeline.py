"""Makes sure that a process that torchrun started ends when it should."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

GRACE = 8.0
"""Seconds that a process gets to end by itself once it was told to, or its parent is gone. torchrun
gives 30."""

_TICK = 0.5


@contextmanager
def lifeline() -> Iterator[None]:
    """While it is open, SIGTERM ends this process within some seconds, and so does the end of the
    process that started it, whatever it is at.

    A handler in Python runs only when the main thread comes back from C++, and in a collective it
    may wait there for half an hour. To be called in the main thread. SIGTERM needs a handler in
    Python besides.
    """
    told, ours = os.pipe()
    os.set_blocking(ours, False)
    before = signal.set_wakeup_fd(ours, warn_on_full_buffer=False)
    thread = threading.Thread(
        target=_follow, args=(told, os.getppid()), name="fullbore-lifeline", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(ours)  # which the thread sees
        thread.join()
        os.close(told)


def _follow(told: int, parent: int) -> None:
    readable = select.poll()
    readable.register(told, select.POLLIN)
    deadline: float | None = None
    while deadline is None or time.monotonic() < deadline:
        numbers = b""
        if readable.poll(_TICK * 1000):
            numbers = os.read(told, 256)
            if not numbers:
                return
        if deadline is None and (signal.SIGTERM in numbers or os.getppid() != parent):
            deadline = time.monotonic() + GRACE
    os._exit(128 + signal.SIGTERM)
