"""News between the ranks of a process group that need not share a link: through its store.

A thread of each rank does all the talking, so that no rank is held up by it, and none misses
anything because it computes. It tells which rank failed, and where each rank is if one asks.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import select
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from torch._C._distributed_c10d import Store

from fullbore.runtime.transport.position import RUN, STEP, WAITS_FOR, Position, Progress

TICK = 0.25
"""Seconds between two looks at the store."""

_TELL_SECONDS = 1.0
_ASK_SECONDS = 2.0
_STILL_SECONDS = 1.0
_HANG_UP: int = getattr(select, "POLLRDHUP", getattr(select, "POLLHUP", 0))


class News(NamedTuple):
    """A failure: in which generation of the transport, of which rank, why, and in which run."""

    generation: int
    rank: int
    reason: str
    run: int


class Elsewhere(NamedTuple):
    """A failure in another pipeline: its global ranks, and what happened."""

    ranks: frozenset[int]
    text: str


class Log:
    """Events that many processes write and each reads, in one order.

    Args:
        store: with a prefix of its own.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.count = 0

    def write(self, event: dict[str, Any]) -> int:
        """Add an event; gives its number."""
        number: int = self._store.add("count", 1) - 1
        self._store.set(str(number), json.dumps(event))
        self._store.add("count", 0)  # has an answer, so that the store has taken the event
        return number

    def read(self) -> list[tuple[int, dict[str, Any]]]:
        """The events that were not read yet, with their numbers."""
        found = []
        while True:
            here, after = str(self.count), str(self.count + 1)
            if self._store.check([here]):
                found.append((self.count, json.loads(self._store.get(here))))
            elif not self._store.check([after]):
                return found  # else that process died before it could say what
            self.count += 1


class Lookout:
    """One rank's ear at the store.

    Args:
        store: with a prefix that only these ranks use, and a connection of its own.
        rank: this one.
        size: how many there are.
        progress: this rank's.
        files: the sockets to other ranks, by rank. One that hangs up without a goodbye is told to
            all, though this rank may be busy.
        world: tells of the failures in all pipelines of the world.
        ranks: the global ranks of the pipeline.

    Attributes:
        generation: to be kept up to date by the transport.
        news: the first failure that was heard of in the latest generation that failed.
        lost: why the store cannot be reached any more.
        left: the ranks that have closed their transports.
        elsewhere: the failures in other pipelines.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        progress: Progress,
        files: Mapping[int, int],
        world: Log,
        ranks: list[int],
    ) -> None:
        self._store, self._rank, self._size, self._progress = store, rank, size, progress
        self._log, self._world, self._ranks = Log(store), world, ranks
        self.generation = 0
        self.news: News | None = None
        self.lost: str | None = None
        self.left: set[int] = set()
        self.elsewhere: list[Elsewhere] = []
        self._answers: dict[int, Position] = {}
        self._requests: queue.SimpleQueue[tuple[dict[str, Any], threading.Event]] = (
            queue.SimpleQueue()
        )
        self._still: tuple[tuple[int, ...], float, bool] = ((), 0.0, False)
        self._ended = False
        self._tick = TICK
        self._wake, self._waker = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._peers = {file: peer for peer, file in files.items()}
        for file in self._peers:
            self._poll.register(file, _HANG_UP)
        self._thread = threading.Thread(target=self._work, name="fullbore-lookout", daemon=True)
        self._thread.start()
        # A thread that comes back from the store while Python ends would end it badly.
        atexit.register(self.close)

    def tell(self, news: News) -> None:
        """Tell all ranks of a failure. Waits a moment, as this process may end soon."""
        self._request({"kind": "failure", **news._asdict()}, _TELL_SECONDS)

    def ask(self) -> dict[int, Position]:
        """Where the other ranks are; waits a moment for their answers. A rank that gives none has
        its last known position, if any."""
        self._request({"kind": "question", "rank": self._rank}, _ASK_SECONDS + _TELL_SECONDS)
        return dict(self._answers)

    def leave(self) -> None:
        """Say goodbye, and give the others the time to hear it: the store may vanish with this
        process, which would be an error otherwise."""
        self._tick = TICK / 20
        self._request({"kind": "goodbye", "rank": self._rank}, _TELL_SECONDS)
        deadline = time.monotonic() + 2 * TICK
        while self.lost is None and len(self.left) < self._size and time.monotonic() < deadline:
            time.sleep(TICK / 20)

    def close(self) -> None:
        """End the thread."""
        if self._ended:
            return
        self._ended = True
        atexit.unregister(self.close)
        os.write(self._waker, b"x")
        self._thread.join(_TELL_SECONDS)  # it hangs if the store's host is stopped
        if not self._thread.is_alive():
            os.close(self._wake)
            os.close(self._waker)

    def _request(self, event: dict[str, Any], seconds: float) -> None:
        if self._ended or self.lost is not None:
            return
        done = threading.Event()
        self._requests.put((event, done))
        os.write(self._waker, b"x")
        done.wait(seconds)

    def _work(self) -> None:
        try:
            self._world.read()  # what was before does not matter
            self.elsewhere.clear()
            while not self._ended:
                self._rest(self._tick)
                self._hear()
                with suppress(queue.Empty):
                    while True:
                        self._serve(*self._requests.get_nowait())
                self._note_stillness()
        except (RuntimeError, OSError) as error:  # torch's errors about stores are RuntimeErrors
            self.lost = str(error).partition("\n")[0]
            with suppress(queue.Empty):
                while True:
                    self._requests.get_nowait()[1].set()

    def _rest(self, seconds: float) -> None:
        for file, event in self._poll.poll(seconds * 1000):
            if file == self._wake:
                os.read(self._wake, 4096)
                continue
            self._poll.unregister(file)
            if event & select.POLLNVAL:
                continue
            peer = self._peers[file]
            self._hear()  # it may have said why
            told = self.news is not None and self.news.generation >= self.generation
            if peer not in self.left and not told and not self._ended:
                news = News(self.generation, peer, "its process is gone", self._progress[RUN])
                self._write({"kind": "failure", **news._asdict()})

    def _serve(self, event: dict[str, Any], done: threading.Event) -> None:
        try:
            number = self._write(event)
            if event["kind"] == "question":
                self._gather(number)
        finally:
            done.set()

    def _write(self, event: dict[str, Any]) -> int:
        if event["kind"] == "failure":
            self._world.write({"by": self._ranks, "rank": event["rank"], "why": event["reason"]})
        return self._log.write(event)

    def _hear(self) -> None:
        for number, event in self._log.read():
            self._obey(event, number)
        self.elsewhere += [
            Elsewhere(
                frozenset(event["by"]),
                f"rank {event['rank']} of the pipeline of global ranks {event['by']} failed: "
                f"{event['why']}",
            )
            for _, event in self._world.read()
            if event["by"] != self._ranks
        ]

    def _obey(self, event: dict[str, Any], number: int) -> None:
        match event["kind"]:
            case "failure":
                news = News(**{name: event[name] for name in News._fields})
                if self.news is None or news.generation > self.news.generation:
                    self.news = news
            case "goodbye":
                self.left.add(event["rank"])
            case _ if event["rank"] != self._rank:
                self._store.set(f"answer/{number}/{self._rank}", self._position())

    def _gather(self, number: int) -> None:
        self._answers = {}
        asked = set(range(self._size)) - {self._rank} - self.left
        deadline = time.monotonic() + _ASK_SECONDS
        while len(self._answers) < len(asked) and time.monotonic() < deadline:
            self._hear()  # others may ask at the same time
            for rank in asked - self._answers.keys():
                if self._store.check([f"answer/{number}/{rank}"]):
                    self._answers[rank] = self._read(f"answer/{number}/{rank}")
            time.sleep(TICK / 10)
        for rank in asked - self._answers.keys():
            if self._store.check([f"still/{rank}"]):
                self._answers[rank] = self._read(f"still/{rank}", "its process does not answer")

    def _read(self, key: str, trouble: str = "") -> Position:
        mark, run, waits_for, seconds = json.loads(self._store.get(key))
        return Position(mark, run, waits_for, seconds=seconds, trouble=trouble)

    def _position(self) -> str:
        numbers, since, _ = self._still
        seconds = time.monotonic() - since if numbers == self._now() else 0.0
        return json.dumps([*self._now(), seconds])

    def _now(self) -> tuple[int, ...]:
        return tuple(self._progress[index] for index in (STEP, RUN, WAITS_FOR))

    def _note_stillness(self) -> None:
        """Tell where this rank is if it does not move: it may not answer later."""
        numbers, since, is_told = self._still
        now = self._now()
        if now != numbers:
            self._still = now, time.monotonic(), False
        elif not is_told and time.monotonic() - since > _STILL_SECONDS:
            self._store.set(f"still/{self._rank}", self._position())
            self._still = now, since, True
