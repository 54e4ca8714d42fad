"""Starts the ranks of one host, each in a process of its own, and collects what they return."""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist

from fullbore.errors import ExecutionError, ParameterError, PeerFailed, TransportTimeout
from fullbore.runtime.failure import describe
from fullbore.runtime.transport import P2PTransport, SharedMemoryTransport, Transport
from fullbore.runtime.transport.shm import socket_pairs

GRACE = 3.0
"""Seconds that ranks get to end by themselves once one has failed, or all are done."""

_TICK = 0.2
_LOOPBACK = "127.0.0.1"
_RESULT, _REPORT, _FAILURE, _HERE = range(4)
_GUARD = 'put the call of launch() behind `if __name__ == "__main__":`'


class ChildTraceback(Exception):
    """The traceback of an exception in a rank's process, as text."""


class _Opening(Protocol):
    """How a rank opens its transport."""

    def open(self, rank: int) -> Transport:
        """In the rank's process."""

    def close_copies(self) -> None:
        """In the launcher, once the rank has been told."""


@dataclass(frozen=True)
class _SharedMemory:
    sockets: dict[int, socket.socket]
    timeout: float

    def open(self, rank: int) -> Transport:
        return SharedMemoryTransport(rank, self.sockets, timeout=self.timeout)

    def close_copies(self) -> None:
        # Or the death of the process that has the other copy would not be seen.
        for end in self.sockets.values():
            end.close()


@dataclass(frozen=True)
class _ProcessGroup:
    port: int
    num_ranks: int
    timeout: float

    def open(self, rank: int) -> Transport:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if _on_linux() else "lo0")
        limit = timedelta(seconds=self.timeout)
        store = dist.TCPStore(_LOOPBACK, self.port, None, False, timeout=limit)  # type: ignore[attr-defined] # torch does not declare it as exported
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=self.num_ranks, timeout=limit
        )
        return P2PTransport(timeout=self.timeout)

    def close_copies(self) -> None:
        """There are none."""


@dataclass(frozen=True)
class _Task:
    """What all ranks' processes are told."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    threads: int
    tune_malloc: bool
    reports: bool


@dataclass(frozen=True)
class _Failure:
    """How a rank failed. A consequence is what a rank sees when another one fails."""

    rank: int
    message: str
    stage: int | None = None
    action: str | None = None
    trace: str = ""
    consequence: bool = False


@dataclass
class _Child:
    """A rank's process."""

    rank: int
    process: SpawnProcess
    connection: Connection
    outcome: tuple[Any] | _Failure | None = None
    was_here: bool = False


def launch(
    function: Callable[..., Any],
    num_ranks: int,
    *,
    transport: Literal["auto", "shm", "p2p"] = "auto",
    args: Sequence[Any] = (),
    timeout: float = 300.0,
    threads: int = 1,
    on_report: Callable[[int, Any], None] | None = None,
    tune_malloc: bool = True,
) -> list[Any]:
    """Run ``function`` on ``num_ranks`` new processes of this host; the results, in rank order.

    Nothing is left behind: the processes end with the call, however it ends, and with this process.
    Ctrl-C interrupts this process only, which ends them.

    Args:
        function: called as ``function(transport, rank, *args)``, or, with ``on_report``, as
            ``function(transport, rank, report, *args)``. It must be importable, its arguments and
            its result picklable. The transport is closed afterwards.
        transport: ``"shm"``: shared memory, Linux only; ``"p2p"``: a process group over the
            loopback interface, the ranks' default group; ``"auto"``: shared memory where it exists.
        timeout: seconds that a message between ranks may take.
        threads: torch threads of each process.
        on_report: called here, as ``on_report(rank, value)``, for every ``report(value)`` there.
        tune_malloc: let the processes keep freed memory instead of returning it to the system
            (glibc only): faster, but they hold their peak.

    Raises:
        ParameterError: an argument makes no sense.
        ExecutionError: a rank failed: the first that did so by itself, with its traceback as cause.
    """
    if num_ranks < 1:
        raise ParameterError(f"num_ranks must be at least 1; got {num_ranks}")
    _require_importable(function)
    task = _Task(function, tuple(args), threads, tune_malloc, on_report is not None)
    children: list[_Child] = []
    with _openings(transport, num_ranks, timeout) as openings:
        try:
            for rank, opening in enumerate(openings):
                children.append(_start(rank, opening, task))
                opening.close_copies()
            failures = _attend(children, on_report)
            _wait_for([child.process for child in children if child.outcome is not None], GRACE)
        finally:
            _end(children)
    if failures:
        raise _error(failures)
    return [child.outcome[0] for child in children if isinstance(child.outcome, tuple)]


def _require_importable(function: Callable[..., Any]) -> None:
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ParameterError(
            "launch() was called while a rank's new process imports the program that called it; "
            f"{_GUARD}"
        )
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ParameterError(
            f"the ranks' processes must be able to import the function; got {function!r}: {error}"
        ) from error
    main = sys.modules["__main__"]
    is_typed_in = not hasattr(main, "__file__") and main.__spec__ is None
    if is_typed_in and getattr(function, "__module__", None) == "__main__":
        raise ParameterError(
            f"the ranks' processes cannot import {function!r}, which was typed in; put it in a file"
        )


@contextmanager
def _openings(transport: str, num_ranks: int, timeout: float) -> Iterator[Sequence[_Opening]]:
    """One for each rank; valid inside the context."""
    if transport not in ("auto", "shm", "p2p"):
        raise ParameterError(f'transport must be "auto", "shm" or "p2p"; got {transport!r}')
    if transport == "shm" or (transport == "auto" and _on_linux()):
        yield [_SharedMemory(sockets, timeout) for sockets in socket_pairs(num_ranks)]
        return
    # The ranks meet at this process, at a port that the system chooses.
    store = dist.TCPStore(_LOOPBACK, 0, None, True, wait_for_workers=False)  # type: ignore[attr-defined] # torch does not declare it as exported
    yield [_ProcessGroup(store.port, num_ranks, timeout)] * num_ranks


def _on_linux() -> bool:
    return sys.platform.startswith("linux")


def _start(rank: int, opening: _Opening, task: _Task) -> _Child:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=_run, args=(rank, opening, task, theirs), name=f"rank {rank}", daemon=False
    )
    with _interrupts_held():
        process.start()
    theirs.close()
    return _Child(rank, process, ours)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold back Ctrl-C for a moment. A process started meanwhile holds it back until it says
    otherwise, or it would die of one while it still imports torch."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _attend(children: list[_Child], on_report: Callable[[int, Any], None] | None) -> list[_Failure]:
    """Until every rank has an outcome, or has had time for one since the first failure. Gives the
    failures in the order in which they were noticed."""
    failures: list[_Failure] = []
    deadline = math.inf
    while busy := [child for child in children if child.outcome is None]:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        ready = wait([child.connection for child in busy], min(left, _TICK))
        for child in busy:
            # A process may have ended with something still to be read, or, if it left helpers of
            # its own behind, with its end of the pipe held open.
            if child.connection in ready or child.process.exitcode is not None:
                _hear(child, on_report)
            if isinstance(child.outcome, _Failure):
                failures.append(child.outcome)
                deadline = min(deadline, time.monotonic() + GRACE)
    return failures


def _hear(child: _Child, on_report: Callable[[int, Any], None] | None) -> None:
    try:
        message = child.connection.recv_bytes() if child.connection.poll() else b""
    except (EOFError, ConnectionResetError):
        message = b""
    if not message:
        child.outcome = _died(child)
        return
    kind, value = pickle.loads(message)
    if kind == _HERE:
        child.was_here = True
    elif kind != _REPORT:
        child.outcome = value if kind == _FAILURE else (value,)
    elif on_report is not None:
        on_report(child.rank, value)


def _died(child: _Child) -> _Failure:
    child.process.join(GRACE)
    code = child.process.exitcode
    if code is None:
        how = "stopped talking"
    elif code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    else:
        how = f"exited with code {code}"
    if not child.was_here:
        how += f" before it could begin (its own message is above; {_GUARD})"
    return _Failure(child.rank, f"the process {how} without a result")


def _wait_for(processes: Sequence[SpawnProcess], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))


def _end(children: Sequence[_Child]) -> None:
    processes = [child.process for child in children]
    for end in (SpawnProcess.terminate, SpawnProcess.kill):
        alive = [process for process in processes if process.is_alive()]
        for process in alive:
            end(process)
        _wait_for(alive, GRACE)
    for child in children:
        child.connection.close()
        child.process.close()


def _error(failures: Sequence[_Failure]) -> ExecutionError:
    first = min(failures, key=lambda failure: failure.consequence)
    error = ExecutionError(first.message, rank=first.rank, stage=first.stage, action=first.action)
    error.__cause__ = ChildTraceback(f"\n{first.trace}") if first.trace else None
    return error


def _run(rank: int, opening: _Opening, task: _Task, connection: Connection) -> None:
    """What a rank's process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _end_with_parent()
    if task.tune_malloc:
        tune_malloc()
    torch.set_num_threads(task.threads)
    tell = _teller(connection)
    tell(_HERE, None)
    report = (lambda value: tell(_REPORT, value),) if task.reports else ()
    try:
        tell(_RESULT, _play(rank, opening, task, report))
    except BaseException as error:  # noqa: BLE001 - the launcher raises it again
        tell(_FAILURE, _failure(rank, error))


def _play(
    rank: int, opening: _Opening, task: _Task, report: tuple[Callable[[Any], None], ...]
) -> Any:
    transport = opening.open(rank)
    try:
        result = task.function(transport, rank, *report, *task.args)
        transport.close()
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException as error:
        transport.abort(_failure(rank, error).message)
        raise
    return result


def _teller(connection: Connection) -> Callable[[int, object], None]:
    lock = threading.Lock()

    def tell(kind: int, value: object) -> None:
        # Plain pickles: torch's own way of sending tensors needs this process to outlive the read.
        message = pickle.dumps((kind, value))
        with lock:
            connection.send_bytes(message)

    return tell


def _failure(rank: int, error: BaseException) -> _Failure:
    trace = "".join(traceback.format_exception(error))
    consequence = any(isinstance(link, PeerFailed | TransportTimeout) for link in _chain(error))
    if isinstance(error, ExecutionError):
        where = rank if error.rank is None else error.rank
        return _Failure(where, error.message, error.stage, error.action, trace, consequence)
    return _Failure(rank, describe(error), trace=trace, consequence=consequence)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, name="fullbore-lifeline", daemon=True).start()


def tune_malloc() -> bool:
    """Let this process keep freed memory instead of returning it to the system and asking again:
    fewer page faults. Gives whether the C library can do that (glibc can).

    For processes that do nothing but train: the memory stays with them until they end.
    """
    if not _on_linux() or not hasattr(ctypes.CDLL(None), "mallopt"):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    trim_threshold, mmap_threshold = -1, -3
    # Older versions refuse more than 32 MB.
    kept = any(mallopt(mmap_threshold, size) for size in (1 << 30, 1 << 25))
    return bool(kept and mallopt(trim_threshold, 2**31 - 1))
