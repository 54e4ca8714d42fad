"""Plays faults in real processes, and notes what every rank sees and when.

The processes are forked from one that has imported torch: a fault then costs little more than the
time until it is noticed.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from fullbore.runtime.failure import describe
from fullbore.runtime.transport import P2PTransport, SharedMemoryTransport, Transport
from fullbore.runtime.transport.shm import socket_pairs

Kind = Literal["shm", "p2p"]

TIMEOUT = 1.5
"""Seconds that a message may take."""

MARGIN = 10.0
"""Seconds beyond it within which every rank must be done."""


@dataclass(frozen=True)
class Setting:
    """How the ranks are brought together.

    Attributes:
        transport: of each pipeline.
        size: how many processes there are.
        groups: the ranks of each pipeline; all of them form one if there are none.
        hosted: whether rank 0's process hosts the store, as without torchrun.
        timeout: of messages.
    """

    transport: Kind
    size: int
    groups: tuple[tuple[int, ...], ...] = ()
    hosted: bool = False
    timeout: float = TIMEOUT


@dataclass(frozen=True)
class Seen:
    """What a rank came to.

    Attributes:
        texts: of what it did, one for each call; None if it said nothing.
        seconds: from the fault to the end of its first call that failed.
    """

    texts: list[str] | None
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The failure."""
        return next((text for text in self.texts or () if text != "fine"), "")


class Clock:
    """What a rank notes: when the fault is, and what its calls come to."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.failed: float | None = None
        self.texts: list[str] = []

    def begin(self) -> None:
        """The fault happens now."""
        self._connection.send_bytes(pickle.dumps(time.monotonic()))

    def end(self) -> None:
        """Nothing more will be noted."""
        self._connection.send_bytes(pickle.dumps((self.texts, self.failed)))
        self._connection.close()

    def call(self, call: Callable[[], object]) -> None:
        """Make a call, and note what comes of it."""
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - it is what the test looks at
            self.failed = self.failed or time.monotonic()
            self.texts.append(describe(error))
        else:
            self.texts.append("fine")


Act = Callable[[Transport, int, Clock], None]
"""What every rank does: ``act(transport, rank, clock)``."""


def play(act: Act, setting: Setting) -> list[Seen]:
    """What each rank saw, by rank. No process is left.

    Raises:
        AssertionError: a rank took too long, or its process did not end by itself.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, act.__module__])
    store, sockets = None, [{} for _ in range(setting.size)]  # type: ignore[var-annotated]
    if setting.transport == "shm":
        sockets = socket_pairs(setting.size)
    port = _free_port() if setting.hosted else 0
    if setting.transport == "p2p" and not setting.hosted:
        store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # type: ignore[attr-defined] # torch does not declare it as exported
        port = store.port
    processes, ours = [], []
    try:
        for rank in range(setting.size):
            mine, theirs = context.Pipe(duplex=False)
            arguments = (act, setting, rank, port, sockets[rank], theirs)
            process = context.Process(target=_run, args=arguments)
            process.start()
            theirs.close()
            for end in sockets[rank].values():
                end.close()
            processes.append(process)
            ours.append(mine)
        return _collect(ours, [process.pid for process in processes], setting)
    finally:
        for process in processes:
            process.join(2.0)
        late = [rank for rank, process in enumerate(processes) if process.is_alive()]
        stopped = [rank for rank in late if _is_stopped(processes[rank].pid)]
        for rank in late:
            os.kill(processes[rank].pid or 0, signal.SIGKILL)
            processes[rank].join()
        assert late == stopped, f"ranks {late} did not end"


def _collect(
    pipes: Sequence[Connection], pids: Sequence[int | None], setting: Setting
) -> list[Seen]:
    told: dict[int, tuple[list[str], float | None]] = {}
    fault: float | None = None
    waiting = dict(zip(pipes, range(len(pipes)), strict=True))
    # A process starts within a minute even on a busy machine; what follows is bounded.
    deadline = time.monotonic() + 60 + setting.timeout + MARGIN
    while time.monotonic() < deadline:
        if all(_is_stopped(pids[rank]) for rank in waiting.values()):
            break
        for pipe in wait(list(waiting), 0.1):
            assert isinstance(pipe, Connection)
            rank = waiting[pipe]
            try:
                message = pickle.loads(pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                del waiting[pipe]  # it was killed
                continue
            if isinstance(message, float):
                fault, deadline = message, time.monotonic() + 2 * (setting.timeout + MARGIN)
            else:
                told[rank] = message
                del waiting[pipe]
    seen = []
    for rank in range(len(pipes)):
        texts, failed = told.get(rank, (None, None))
        since = failed - fault if failed is not None and fault is not None else 0.0
        assert since < setting.timeout + MARGIN, f"rank {rank} took {since:.1f} s: {texts}"
        seen.append(Seen(texts, since))
    return seen


def _run(
    act: Act,
    setting: Setting,
    rank: int,
    port: int,
    sockets: dict[int, socket.socket],
    connection: Connection,
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    clock, own = Clock(connection), rank
    transport: Transport
    if setting.transport == "shm":
        transport = SharedMemoryTransport(rank, sockets, timeout=setting.timeout)
    else:
        host, limit = setting.hosted and rank == 0, timedelta(seconds=30)
        store = dist.TCPStore("127.0.0.1", port, None, host, wait_for_workers=False, timeout=limit)  # type: ignore[attr-defined] # torch does not declare it as exported
        dist.init_process_group("gloo", store=store, rank=rank, world_size=setting.size)
        groups = [dist.new_group(list(ranks)) for ranks in setting.groups]
        mine = next((g for g, r in zip(groups, setting.groups, strict=True) if rank in r), None)
        own = dist.get_rank(mine)
        transport = P2PTransport(mine, timeout=setting.timeout)
    act(transport, own, clock)
    clock.end()
    transport.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _is_stopped(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False
