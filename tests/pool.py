"""Worker processes that outlive a test: importing torch costs seconds in each."""

import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any


class WorkerFailed(AssertionError):
    """A function raised in a worker, or the worker died; the text is the traceback there."""


class Pool:
    """``size`` ranks of a gloo group on this host, started when they are first needed."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._workers: list[tuple[SpawnProcess, Connection]] = []
        self._store: object = None

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = 120.0) -> list[Any]:
        """The results of ``function(rank, size, *args)`` on every rank, by rank.

        After a failure the workers are ended, and new ones serve the next call: nobody knows what
        state they are in. A test of failures catches them in ``function``.
        """
        if not self._workers:
            self._start()
        message = pickle.dumps((function, args))
        try:
            for _, connection in self._workers:
                connection.send_bytes(message)
            return self._collect(time.monotonic() + timeout)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the workers."""
        for process, connection in self._workers:
            connection.close()
            process.kill()
        for process, _ in self._workers:
            process.join()
            process.close()
        self._workers, self._store = [], None

    def _start(self) -> None:
        import torch.distributed as dist

        # torch does not declare it as exported.
        store = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", 0, None, True, wait_for_workers=False
        )
        self._store = store
        context = multiprocessing.get_context("spawn")
        for rank in range(self._size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self._size, store.port, theirs))
            process.start()
            theirs.close()
            self._workers.append((process, ours))

    def _collect(self, deadline: float) -> list[Any]:
        results: dict[int, Any] = {}
        failures: list[tuple[bool, int, str]] = []
        while len(results) + len(failures) < self._size:
            told = results.keys() | {rank for _, rank, _ in failures}
            busy = {self._workers[rank][1]: rank for rank in range(self._size) if rank not in told}
            # Once one has failed, the others may wait for it for ever.
            limit = min(deadline, time.monotonic() + 5.0) if failures else deadline
            ready = wait(list(busy), max(0.0, limit - time.monotonic()))
            if not ready:
                rest = ", ".join(str(rank) for rank in busy.values())
                failures.append((bool(failures), -1, f"no answer from rank(s) {rest}"))
                break
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = busy[connection]
                try:
                    ok, consequence, value = pickle.loads(connection.recv_bytes())
                except (EOFError, ConnectionResetError):
                    self._workers[rank][0].join(5.0)
                    code = self._workers[rank][0].exitcode
                    ok, consequence, value = False, False, f"the worker ended with code {code}"
                if ok:
                    results[rank] = value
                else:
                    failures.append((consequence, rank, value))
        if failures:
            _, rank, text = min(failures, key=lambda failure: failure[0])
            raise WorkerFailed(f"rank {rank} of {self._size}: {text}")
        return [results[rank] for rank in range(self._size)]


def _serve(rank: int, size: int, port: int, connection: Connection) -> None:
    """What a worker does: calls functions until nobody asks for more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, None, False)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    while True:
        try:
            function, args = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        connection.send_bytes(pickle.dumps(_answer(function, (rank, size, *args))))


def _answer(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[bool, bool, Any]:
    from fullbore.errors import TransportError

    try:
        return True, False, function(*args)
    except Exception as error:  # noqa: BLE001 - it fails the test
        return False, isinstance(error, TransportError), "".join(traceback.format_exception(error))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
