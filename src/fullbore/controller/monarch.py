"""A rank an actor, on Monarch's meshes."""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import product
from typing import Any, TypeVar

# First: it says what to install where Monarch is missing, and sets Monarch up.
from fullbore.controller.actor import FaultHook, RankActor

# isort: split
import torch
from monarch.actor import Future, HostMesh, ProcMesh, this_host
from torch import nn

from fullbore.controller.engine import RankLost
from fullbore.controller.host import Build, Request
from fullbore.controller.meeting import Appointment, Contact, TransportName, uses_memory
from fullbore.controller.outcome import Outcome, Raised
from fullbore.controller.packing import Packed, pack, unpack
from fullbore.controller.processes import Processes
from fullbore.errors import ParameterError
from fullbore.runtime.sharding import is_replicated
from fullbore.runtime.transport.p2p_rendezvous import machine

_Result = TypeVar("_Result")

GRACE = 5.0
"""Seconds in which a rank is waited for that may be why others fail."""

_TICK = 0.05
_REASON_SECONDS = 1.5
_GOODBYE_SECONDS = 2.0
_STOP_SECONDS = 3.0


class MonarchEngine:
    """An actor a rank, each in a process of its own. The ranks' messages do not pass through
    Monarch: they go through shared memory on one host, else over the runtime's ``P2PTransport``.

    Args:
        transport: ``"shm"``, ``"p2p"``, or ``"auto"``: shared memory where all ranks can.
        timeout: seconds that a message between ranks may take.
        threads: torch threads of each process.
    """

    def __init__(
        self, *, transport: TransportName = "auto", timeout: float = 300.0, threads: int = 1
    ) -> None:
        self._transport, self._timeout, self._threads = transport, timeout, threads
        self._meshes: list[Any] = []
        self._builds: Sequence[Build] = ()
        self._owned: list[Any] = []
        self._actors: list[Any] = []
        self._pending: dict[int, Future[bytes]] = {}
        self._processes = Processes({})
        self._lost: RankLost | None = None
        self._hook = FaultHook()
        self._token = secrets.token_hex(4)
        self._seed: int | None = None

    def place(self, meshes: Any) -> Sequence[Sequence[int]]:
        """A process a rank.

        Args:
            meshes: a number of ranks, for which processes are started on this host; a mesh of
                processes, one a rank; a mesh of hosts, on each of which a process is started; or a
                list of meshes.

        Raises:
            ParameterError: it is something else, or the engine has a pipeline already.
        """
        if self._meshes:
            raise ParameterError("this engine has a pipeline already; make one for each pipeline")
        if not (isinstance(meshes, list | tuple) and meshes):
            meshes = [meshes]
        self._meshes = list(meshes)
        return [(rank,) for rank in range(sum(map(_count, self._meshes)))]

    def start(self, builds: Sequence[Build]) -> None:
        """Start the processes; see ``Engine``."""
        _aside(partial(self._start, builds))

    def _start(self, builds: Sequence[Build]) -> None:
        packed = [_pack_build(build) for build in builds]
        self._builds, self._lost = builds, None
        if self._seed is None:
            self._seed = torch.initial_seed()
        self._hook.install(self._is_hurt)
        self._spawn()
        contacts: list[Contact] = self._everywhere("listen", bool(self._owned))
        here = machine()
        self._processes = Processes(
            {rank: c.identity for rank, c in enumerate(contacts) if c.machine == here}
        )
        device = _device_of(builds)
        store = None
        if not uses_memory(contacts, self._transport, device):
            on_one_host = len({contact.machine for contact in contacts}) == 1
            store = self._gather({0: pack(("open_store", (on_one_host,)))})[0]
        appointment = Appointment(tuple(contacts), store, self._timeout, device)
        self._everywhere("join", appointment)
        self._ask([pack(("build", (build,))) for build in packed])

    def pack(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        """Messages as bytes; those that are the same for all are packed once."""
        known: dict[int, bytes] = {}
        for args in arguments:
            for request in args:
                if isinstance(request, Request):
                    request.check_sendable()
            if id(args) not in known:
                try:
                    known[id(args)] = pack((method, args))
                except Exception as error:
                    raise ParameterError(
                        f"{method}: an argument cannot be sent to the ranks' processes: {error}"
                    ) from error
        return [known[id(args)] for args in arguments]

    def ask(self, messages: Sequence[Any]) -> list[Any]:
        """One message to each process; see ``Engine``."""
        return _aside(partial(self._ask, messages))

    def _ask(self, messages: Sequence[Any]) -> list[Any]:
        self._drain()
        found = self._gather({r: m for r, m in enumerate(messages) if m is not None})
        return [found.get(rank) for rank in range(len(messages))]

    def check_restart(self) -> None:
        """Guard of ``recover=``; see ``Engine``."""
        if any(isinstance(mesh, ProcMesh) for mesh in self._meshes):
            raise ParameterError(
                "recover=: the processes of a mesh that was given cannot be started anew; give a "
                "mesh of hosts or a number of ranks, so that the controller starts them"
            )

    def restart(self) -> None:
        """End all processes, and start new ones."""
        self.close()
        self.start(self._builds)

    def close(self) -> None:
        """End the processes that were started here, and the actors elsewhere."""
        _aside(self._close)

    def _close(self) -> None:
        self._say_goodbye()
        if self._owned:
            # Monarch waits seconds for processes that have nothing left to do, and for a stopped
            # one that would not hear it.
            self._processes.kill()
        self._hook.retire(kills=bool(self._owned))
        lost = None if self._lost is None else self._lost.rank
        actors = [actor for rank, actor in enumerate(self._actors) if rank != lost]
        for mesh in self._owned or actors:
            with suppress(Exception):
                mesh.stop().get(timeout=_STOP_SECONDS)
        self._processes.close()
        self._owned, self._actors, self._pending = [], [], {}

    def _is_hurt(self) -> bool:
        return self._lost is not None or bool(self._processes.ended())

    def _spawn(self) -> None:
        for mesh in self._meshes:
            procs = mesh
            if not isinstance(mesh, ProcMesh):
                host, per_host = (this_host(), {"ranks": mesh}) if type(mesh) is int else (mesh, {})
                procs = host.spawn_procs(per_host=per_host, name="fullbore")
                self._owned.append(procs)
            for point in _points(procs):
                rank = len(self._actors)
                place = procs.slice(**point)
                actor = place.spawn(
                    self._name(rank),
                    RankActor,
                    rank,
                    sys.path,
                    self._threads,
                    self._seed,
                )
                self._actors.append(actor)

    def _name(self, rank: int) -> str:
        """Of a rank's actor; no other engine's is called that."""
        return f"fullbore_{self._token}_rank_{rank}"

    def _everywhere(self, method: str, *args: Any) -> list[Any]:
        return self._ask([pack((method, args))] * len(self._actors))

    def _gather(self, messages: Mapping[int, bytes]) -> dict[int, Any]:
        """The results by rank. Raises as soon as a rank has failed by itself; the others stay
        pending."""
        self._check_lost()
        for rank, message in messages.items():
            self._pending[rank] = self._actors[rank].ask.call_one(message)
        results: dict[int, Any] = {}
        consequence: Raised | None = None
        deadline = math.inf
        while self._pending and time.monotonic() < deadline:
            for rank, outcome in self._hear():
                if not isinstance(outcome, Raised):
                    results[rank] = outcome[0]
                    continue
                if not outcome.is_consequence:
                    raise outcome.again()
                if consequence is None:
                    consequence, deadline = outcome, time.monotonic() + GRACE
            self._check_lost()
        if consequence is not None:
            raise consequence.again()
        return results

    def _hear(self) -> Iterator[tuple[int, Outcome]]:
        """Wait a moment for one of the pending ranks; what any of them has said."""
        patience = _TICK
        for rank, future in list(self._pending.items()):
            try:
                data = future.get(timeout=patience)
            except TimeoutError:
                patience = 0.0
                continue
            except Exception as error:
                del self._pending[rank]
                raise self._lose(rank, _reason(str(error))) from error
            del self._pending[rank]
            yield rank, unpack(data)

    def _drain(self) -> None:
        """Wait until no rank is busy any more with what was asked before."""
        deadline = time.monotonic() + self._timeout
        while self._pending:
            for _ in self._hear():
                pass
            self._check_lost()
            if self._pending and time.monotonic() > deadline:
                rank = min(self._pending)
                raise self._lose(rank, f"has not answered for {self._timeout:g} s")

    def _check_lost(self) -> None:
        """Guard of every wait.

        Raises:
            RankLost: a process has ended, or is stopped.
        """
        if self._lost is not None:
            raise self._lose(self._lost.rank or 0, "")
        for rank in self._processes.ended():
            raise self._lose(rank, self._find_reason(rank))
        for rank in self._processes.stopped():
            if rank in self._pending:
                raise self._lose(rank, "is stopped (SIGSTOP); nothing was heard of it")

    def _find_reason(self, rank: int) -> str:
        """How a process has ended: Monarch knows, a moment later."""
        deadline = time.monotonic() + _REASON_SECONDS
        while time.monotonic() < deadline:
            try:
                future = self._pending.get(rank)
                if future is not None:
                    future.get(timeout=_TICK)
            except TimeoutError:
                pass
            except Exception as error:  # noqa: BLE001 - Monarch has several for this
                del self._pending[rank]
                return _reason(str(error))
            else:
                time.sleep(_TICK)
            own = f"{self._name(rank)}-"
            reasons = [_reason(text) for name, text in self._hook.texts if name.startswith(own)]
            if reasons:
                return reasons[0]
        return _GONE

    def _lose(self, rank: int, how: str) -> RankLost:
        if self._lost is None:
            pid = self._processes.pid(rank)
            process = "its process" if pid is None else f"its process {pid}"
            self._lost = RankLost(f"{process} {how}", rank=rank)
        return RankLost(self._lost.message, rank=self._lost.rank)

    def _say_goodbye(self) -> None:
        if self._lost is not None or self._pending or self._is_hurt():
            return
        goodbyes = [actor.ask.call_one(pack(("close", ()))) for actor in self._actors]
        for goodbye in goodbyes:
            with suppress(Exception):
                goodbye.get(timeout=_GOODBYE_SECONDS)


_GONE = "is gone"
_KILLED, _EXITED = re.compile(r"Killed\(sig=(\d+)"), re.compile(r"exited with [\w-]* ?code (-?\d+)")


def _reason(text: str) -> str:
    """What Monarch says about the end of a process, in a few words."""
    if found := _KILLED.search(text):
        return f"was killed by {signal.Signals(int(found[1])).name}"
    if found := _EXITED.search(text):
        return f"exited with code {found[1]}"
    return _GONE


def _aside(work: Callable[[], _Result]) -> _Result:
    """Do it here; where an event loop runs, as in a notebook, on another thread: Monarch complains
    of those who wait in a loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(copy_context().run, work).result()


def _count(mesh: Any) -> int:
    if type(mesh) is int and mesh > 0:
        return mesh
    if isinstance(mesh, ProcMesh | HostMesh):
        return math.prod(mesh.extent[label] for label in mesh.extent)
    raise ParameterError(
        "engine='monarch': meshes must be a number of ranks, a mesh of processes or hosts, such as "
        f"this_host().spawn_procs(per_host={{'ranks': 2}}), or a list of these; got {mesh!r}"
    )


def _points(procs: Any) -> Iterator[dict[str, int]]:
    labels = list(procs.extent)
    for place in product(*(range(procs.extent[label]) for label in labels)):
        yield dict(zip(labels, place, strict=True))


def _device_of(builds: Sequence[Build]) -> str | None:
    """Where the stages are: where they are to go, or the modules that were given are."""
    if builds[0].device is not None:
        return builds[0].device
    sources = [stage for build in builds for stage in build.stages.values()]
    modules = [source for source in sources if isinstance(source, nn.Module)]
    return next((p.device.type for module in modules for p in module.parameters()), None)


def _pack_build(build: Build) -> Packed:
    for index, stage in build.stages.items():
        if isinstance(stage, nn.Module) and is_replicated(stage):
            raise ParameterError(
                f"stage {index} is wrapped by DistributedDataParallel or fully_shard, whose "
                "process group is of this process and not of its rank's; give it without the "
                "wrapper, or start a process for each rank yourself"
            )
    try:
        return Packed(build)
    except Exception as whole:
        for index, stage in build.stages.items():
            try:
                pack(stage)
            except Exception as error:
                raise ParameterError(
                    f"stage {index} ({type(stage).__qualname__}) cannot be sent to its rank's "
                    f"process: {error}; Factory('package.module.build', ...) builds it there"
                ) from error
        raise ParameterError(
            f"the loss function, or an option of the pipeline, cannot be sent to rank "
            f"{build.ranks[0]}'s process: {whole}"
        ) from whole
