"""Round trips of one message between two processes, beside plain gloo.

    python -m bench.transport [--rounds 10] [--bytes 256 65536 ...]

One tensor goes down and one comes back, as between neighbours in the middle of a 1F1B schedule. The
ways are measured in turn, in random order, several times; every process has one thread. Printed are
microseconds a round trip, as median (minimum), and the processor time of both processes together.

gloo is used in the two ways that make sense: on one group, with each receive posted when it is
needed, as PyTorch's pipelining does; and on a group for each direction, with receives posted ahead
into buffers of the right size, which is the fastest. There the receiver has to know the sizes, and
copies nothing out.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from bench.common import provenance, table
from torch import Tensor

from fullbore.runtime.launch import launch
from fullbore.runtime.transport import Edge, SharedMemoryTransport, Transport
from fullbore.runtime.transport.shm import socket_pairs

SIZES = (256, 4096, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
WAYS = ("shm", "p2p", "gloo, posted ahead", "gloo, just in time")
DOWN, UP = (0, 1), (1, 0)
AHEAD = 4
WARM_UP = 20

Exchange = Callable[[], None]
"""Sends one message and receives one, in the order that is this rank's."""


def through(transport: Transport, rank: int, tensor: Tensor) -> Exchange:
    """By a transport of ours."""
    sends, receives = (DOWN, UP) if rank == 0 else (UP, DOWN)

    def send() -> None:
        transport.send(sends, 0, tensor)

    def receive() -> None:
        transport.post(receives, 0)
        transport.recv(receives, 0)

    return in_turn(rank, send, receive)


def just_in_time(rank: int, tensor: Tensor) -> Exchange:
    """By plain gloo calls on the default group."""
    buffer, under_way = torch.empty_like(tensor), deque[Any](maxlen=AHEAD)

    def send() -> None:
        under_way.append(dist.isend(tensor, 1 - rank))

    def receive() -> None:
        work = dist.irecv(buffer, 1 - rank)
        assert work is not None
        work.wait()

    return in_turn(rank, send, receive)


def posted_ahead(rank: int, tensor: Tensor, groups: dict[Edge, dist.ProcessGroup]) -> Exchange:
    """By plain gloo calls on a group for each direction."""
    sends, receives = (DOWN, UP) if rank == 0 else (UP, DOWN)
    under_way = deque[Any](maxlen=AHEAD)
    buffers = [torch.empty_like(tensor) for _ in range(AHEAD)]

    def post(buffer: Tensor) -> tuple[Any, Tensor]:
        return dist.irecv(buffer, 1 - rank, groups[receives]), buffer

    posted = deque(post(buffer) for buffer in buffers)

    def send() -> None:
        under_way.append(dist.isend(tensor, 1 - rank, groups[sends]))

    def receive() -> None:
        work, buffer = posted.popleft()
        work.wait()
        posted.append(post(buffer))

    return in_turn(rank, send, receive)


def in_turn(rank: int, send: Exchange, receive: Exchange) -> Exchange:
    first, second = (send, receive) if rank == 0 else (receive, send)

    def exchange() -> None:
        first()
        second()

    return exchange


def run_rank(
    p2p: Transport,
    rank: int,
    report: Callable[[Any], None],
    ends: list[dict[int, Any]],
    sizes: list[int],
    rounds: int,
) -> None:
    """All ways, sizes and rounds; reports (bytes, way, times, CPU seconds a round trip)."""
    shm = SharedMemoryTransport(rank, ends[rank])
    for transport in (shm, p2p):
        transport.connect(2, (DOWN, UP))
    order = random.Random(0)
    for size in sizes:
        tensor = torch.ones(size // 4)
        # gloo's posted receives stay behind, so every size has groups of its own.
        groups = {edge: dist.new_group([0, 1]) for edge in (DOWN, UP)}
        ways = {
            "shm": through(shm, rank, tensor),
            "p2p": through(p2p, rank, tensor),
            "gloo, posted ahead": posted_ahead(rank, tensor, groups),
            "gloo, just in time": just_in_time(rank, tensor),
        }
        for _ in range(rounds):
            for way in order.sample(WAYS, len(WAYS)):
                report((size, way, *measure(ways[way], 200 if size < 1 << 19 else 50)))
    shm.close()


def measure(exchange: Exchange, count: int) -> tuple[list[float], float]:
    """Seconds of each of ``count`` round trips, and CPU seconds a round trip."""
    dist.barrier()
    for _ in range(WARM_UP):
        exchange()
    times, cpu = [], time.process_time()
    for _ in range(count):
        start = time.perf_counter()
        exchange()
        times.append(time.perf_counter() - start)
    return times, (time.process_time() - cpu) / count


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--bytes", type=int, nargs="+", default=list(SIZES))
    options = parser.parse_args()
    times: dict[tuple[int, str], list[float]] = defaultdict(list)
    cpu: dict[tuple[int, str], list[list[float]]] = defaultdict(lambda: [[], []])

    def take(rank: int, finding: tuple[int, str, list[float], float]) -> None:
        size, way, found, spent = finding
        cpu[size, way][rank].append(spent)
        if rank == 0:
            times[size, way] += found
            print(f"{size} bytes, {way}".ljust(40), end="\r", file=sys.stderr, flush=True)

    with ExitStack() as stack:
        ends = socket_pairs(2)
        for end in (end for sockets in ends for end in sockets.values()):
            stack.enter_context(end)
        arguments = (ends, options.bytes, options.rounds)
        launch(run_rank, 2, transport="p2p", args=arguments, on_report=take)
    print(*provenance(), sep="\n")
    rows = []
    for size in options.bytes:
        row = [str(size)]
        for way in WAYS:
            found = sorted(times[size, way])
            both = sum(statistics.median(rank) for rank in cpu[size, way])
            row += [
                f"{statistics.median(found) * 1e6:.0f} ({found[0] * 1e6:.0f})",
                f"{both * 1e6:.0f}",
            ]
        rows.append(row)
    head = [text for way in WAYS for text in (f"{way}, us", "CPU, us")]
    print(f"\n{table(['bytes', *head], rows)}")


if __name__ == "__main__":
    main()
