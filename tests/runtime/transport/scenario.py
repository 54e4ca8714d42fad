"""What ranks do to each other, written down so that one process or several can play it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch.distributed as dist
from tests.pool import Pool

from fullbore.runtime.transport import (
    Edge,
    LocalTransport,
    P2PTransport,
    SharedMemoryTransport,
    Transport,
)
from fullbore.runtime.transport.shm import socket_pairs

DOWN, UP = (0, 1), (1, 0)
PAIR = (DOWN, UP)
CHAIN = ((0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2))


class Step(NamedTuple):
    """One call. What it returns or raises is its result."""

    rank: int
    call: str
    args: tuple[Any, ...] = ()


class Scene(NamedTuple):
    """Steps, and the ranks that play them."""

    steps: Sequence[Step]
    num_ranks: int = 2
    edges: Sequence[Edge] = PAIR
    timeout: float = 20.0


Play = Callable[[Scene], Mapping[int, Any]]
"""Gives the results of a scene's steps, by position."""

P2P = pytest.param("p2p", marks=pytest.mark.gloo)


def send(edge: Edge, tag: int, value: object) -> Step:
    return Step(edge[0], "send", (edge, tag, value))


def post(edge: Edge, tag: int) -> Step:
    return Step(edge[1], "post", (edge, tag))


def recv(edge: Edge, tag: int) -> Step:
    return Step(edge[1], "recv", (edge, tag))


def message(edge: Edge, tag: int, value: object) -> list[Step]:
    return [post(edge, tag), send(edge, tag, value), recv(edge, tag)]


def everywhere(call: str, *args: object) -> list[Step]:
    return [Step(rank, call, args) for rank in (0, 1)]


def received(scene: Scene, results: Mapping[int, Any]) -> list[Any]:
    """The results of the receives, in order."""
    return [results[i] for i, step in enumerate(scene.steps) if step.call == "recv"]


def failures(results: Mapping[int, Any]) -> list[Exception]:
    """The exceptions among the results, in order."""
    found = [results[position] for position in sorted(results)]
    return [result for result in found if isinstance(result, Exception)]


def play(steps: Sequence[Step], transports: Mapping[int, Transport]) -> dict[int, Any]:
    """The results of the steps whose ranks are in ``transports``."""
    return {
        position: outcome(getattr(transports[step.rank], step.call), step.args)
        for position, step in enumerate(steps)
        if step.rank in transports
    }


def outcome(call: Callable[..., object], args: tuple[Any, ...]) -> object:
    try:
        return call(*args)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return error


def local(scene: Scene) -> Mapping[int, Any]:
    """Step by step."""
    transport = LocalTransport()
    transport.connect(scene.num_ranks, scene.edges)
    return play(scene.steps, dict.fromkeys(range(scene.num_ranks), transport))


@contextmanager
def shm_ranks(scene: Scene, **options: Any) -> Iterator[dict[int, SharedMemoryTransport]]:
    """The ranks' transports, all in this process."""
    ends = socket_pairs(scene.num_ranks)
    ranks = {
        rank: SharedMemoryTransport(rank, sockets, timeout=scene.timeout, **options)
        for rank, sockets in enumerate(ends)
    }
    for transport in ranks.values():
        transport.connect(scene.num_ranks, scene.edges)
    try:
        yield ranks
    finally:
        for transport in ranks.values():
            transport.close()


def shm(scene: Scene) -> Mapping[int, Any]:
    """Step by step, through shared memory."""
    with shm_ranks(scene) as ranks:
        return play(scene.steps, ranks)


def shm_at_once(scene: Scene) -> Mapping[int, Any]:
    """Every rank in a thread of its own."""
    with shm_ranks(scene) as ranks, ThreadPoolExecutor(scene.num_ranks) as threads:
        found = threads.map(lambda rank: play(scene.steps, {rank: ranks[rank]}), ranks)
        return {key: value for results in found for key, value in results.items()}


def p2p(pool: Callable[[int], Pool]) -> Play:
    """Every rank in a process of its own."""

    def run(scene: Scene) -> Mapping[int, Any]:
        found = pool(scene.num_ranks).run(_p2p_rank, scene)
        return {key: value for results in found for key, value in results.items()}

    return run


def player(request: pytest.FixtureRequest) -> Play:
    """The player that a fixture's parameter names."""
    if request.param == "p2p":
        return p2p(request.getfixturevalue("pool"))
    return {"local": local, "shm": shm, "shm at once": shm_at_once}[request.param]


def _p2p_rank(rank: int, size: int, scene: Scene) -> dict[int, Any]:
    transport = P2PTransport(timeout=scene.timeout)
    transport.connect(size, scene.edges)
    results = play(scene.steps, {rank: transport})
    dist.barrier()  # nobody takes the end of a scene for an early goodbye
    transport.close()
    return results
