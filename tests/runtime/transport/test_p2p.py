"""Process groups: meeting, large messages under way, other devices."""

import gc
import socket
import sys
import threading
import time
import weakref
from collections import deque
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.runtime.transport.scenario import DOWN, PAIR, UP
from tests.runtime.values import DTYPES, same_leaf

from fullbore.errors import ParameterError, TransportError, TransportTimeout
from fullbore.runtime.transport import P2PTransport, p2p_rendezvous
from fullbore.runtime.transport.p2p_device import DeviceChannel, Later
from fullbore.runtime.transport.p2p_link import StreamLink
from fullbore.runtime.wire import Describer, Leaf

pytestmark = pytest.mark.torch

LARGE = 8_000_000


def test_a_process_group_must_be_there():
    with pytest.raises(ParameterError, match="init_process_group"):
        P2PTransport()


def exchange(transport: P2PTransport, rank: int, value: torch.Tensor) -> float:
    """Each of two ranks sends ``value``; gives the sum of what the other one sent."""
    transport.connect(2, PAIR)
    sends, receives = (DOWN, UP) if rank == 0 else (UP, DOWN)
    transport.post(receives, 1)
    transport.send(sends, 1, value)
    got = float(transport.recv(receives, 1).sum())
    transport.flush()
    transport.close()
    return got


def two_pipelines(rank: int, size: int) -> tuple[float, float, str]:
    """Two groups of two in a world of four, one after another with the ranks in reverse."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    own, other = groups[rank // 2], groups[1 - rank // 2]
    first = exchange(P2PTransport(own), rank % 2, torch.tensor(float(rank)))
    second = exchange(P2PTransport(own), rank % 2, torch.full((50_000,), float(rank)))
    try:
        P2PTransport(other)
    except ParameterError as error:
        return first, second, str(error)
    return first, second, ""


@pytest.mark.gloo
def test_pipelines_side_by_side_in_one_world(pool):
    results = pool(4).run(two_pipelines)
    assert [first for first, _, _ in results] == [1.0, 0.0, 3.0, 2.0]
    assert [second for _, second, _ in results] == [50_000.0, 0.0, 150_000.0, 100_000.0]
    assert {why for _, _, why in results} == {
        "this process is not in the group that P2PTransport was given"
    }


def send_ahead(rank: int, size: int) -> list:
    """Rank 0 sends far more than a socket holds before rank 1 reads anything."""
    transport = P2PTransport(timeout=2.0)
    transport.connect(2, PAIR)
    if rank == 1:
        dist.barrier()
        dist.barrier()
        sums = [float(take(transport, tag).sum()) for tag in range(4)]
        transport.close()
        return sums
    sent = [torch.ones(LARGE) for _ in range(3)]
    alive = [weakref.ref(tensor) for tensor in sent]
    for tag in range(3):
        transport.send(DOWN, tag, sent[tag])
    transport.send(DOWN, 3, torch.tensor(4.0))
    del sent
    dist.barrier()
    try:
        transport.flush()
    except TransportTimeout as error:
        stalled = str(error)
    dist.barrier()
    deadline = time.monotonic() + 20
    while any(ref() is not None for ref in alive) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    transport.flush()
    transport.close()
    return [stalled, sum(ref() is not None for ref in alive)]


def take(transport: P2PTransport, tag: int) -> torch.Tensor:
    transport.post(DOWN, tag)
    got: torch.Tensor = transport.recv(DOWN, tag)
    return got


@pytest.mark.gloo
def test_a_large_message_does_not_hold_its_sender_up(pool):
    (stalled, alive), sums = pool(2).run(send_ahead)
    assert stalled == "rank 0 waited 2 s for rank 1 to take what it was sent"
    assert alive == 0
    assert sums == [LARGE, LARGE, LARGE, 4.0]


def back_and_forth(rank: int, size: int) -> float:
    """Large messages of many lengths, one after another, each read as it comes in."""
    transport = P2PTransport(timeout=10.0)
    transport.connect(2, PAIR)
    received = 0.0
    for tag in range(400):
        value = torch.ones(20_000 + 997 * tag)
        for edge in (DOWN, UP):
            if rank == edge[0]:
                transport.send(edge, tag, value)
            else:
                transport.post(edge, tag)
                received += float(transport.recv(edge, tag).sum())
    transport.close()
    return received


@pytest.mark.gloo
def test_large_messages_back_and_forth(pool):
    total = sum(20_000 + 997 * tag for tag in range(400))
    assert pool(2).run(back_and_forth) == [total, total]


def connect_often(rank: int, size: int) -> list[int]:
    """Open files after each pipeline's life."""
    counts = []
    for _ in range(4):
        exchange(P2PTransport(), rank, torch.ones(LARGE))
        dist.barrier()
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    return counts


@pytest.mark.gloo
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts files in /proc")
def test_nothing_stays_open(pool):
    for first, *others in pool(2).run(connect_often):
        assert others == [first] * 3


def many_leaves(rank: int, size: int) -> bool:
    """A large message of more pieces than go into one system call."""
    transport = P2PTransport(timeout=10.0)
    transport.connect(2, PAIR)
    value = {str(i): torch.full((i % 7 * 100,), float(i), requires_grad=True) for i in range(200)}
    if rank == 0:
        transport.send(DOWN, 1, value)
        transport.flush()
    else:
        transport.post(DOWN, 1)
        got = transport.recv(DOWN, 1)
        assert list(got) == list(value)
        assert all(same_leaf(got[key], value[key]) for key in value)
    dist.barrier()
    transport.close()
    return True


@pytest.mark.gloo
def test_a_message_of_many_tensors(pool):
    assert pool(2).run(many_leaves) == [True, True]


def leave_at_once(rank: int, size: int) -> str:
    """Rank 0 leaves with much unsent, rank 1 never reads."""
    transport = P2PTransport(timeout=5.0)
    transport.connect(2, PAIR)
    if rank == 0:
        transport.send(DOWN, 1, torch.ones(LARGE))
    transport.close()
    dist.barrier()
    return ", ".join(t.name for t in threading.enumerate() if "outbox" in t.name and outlives(t))


def outlives(thread: threading.Thread) -> bool:
    thread.join(10)
    return thread.is_alive()


@pytest.mark.gloo
def test_nothing_runs_on_after_close(pool):
    assert pool(2).run(leave_at_once) == ["", ""]


def contact(*addresses: str, port: int = 9) -> p2p_rendezvous._Contact:
    return p2p_rendezvous._Contact("here", addresses, port, b"k" * 32)


def test_a_rank_that_cannot_be_reached_is_named():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(TransportError, match=r"rank 0 could not connect to rank 1 in 0\.3 s"),
    ):
        p2p_rendezvous._connect(server, 0, [contact(), contact()], peers=[1], timeout=0.3)


def test_strangers_are_not_let_in():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with (
            socket.create_connection(("127.0.0.1", port)) as stranger,
            socket.create_connection(("127.0.0.1", port)) as hasty,
        ):
            stranger.sendall(b"x" * 36)
            hasty.sendall(b"k" * 10)
            hasty.shutdown(socket.SHUT_WR)
            contacts = [contact("127.0.0.1", port=port), contact("127.0.0.1", port=port)]
            found: dict[int, socket.socket] = {}
            dialling = threading.Thread(
                target=lambda: found.update(
                    {0: p2p_rendezvous._dial(3, 0, [*contacts, *contacts], deadline=soon())}
                )
            )
            dialling.start()
            rank, sock = p2p_rendezvous._admit(server, b"k" * 32, deadline=soon())
            dialling.join()
        sock.close()
        found[0].close()
    assert rank == 3


def soon() -> float:
    return time.monotonic() + 10


def test_interfaces_are_named_as_for_gloo(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert p2p_rendezvous._named_addresses() == ["127.0.0.1"]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    with pytest.raises(TransportError, match="GLOO_SOCKET_IFNAME names nosuch0"):
        p2p_rendezvous._named_addresses()


def test_without_a_named_interface_the_loopback_is_the_last_resort(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    found = list(p2p_rendezvous._guessed_addresses())
    assert found[0] == found[-1] == "127.0.0.1"
    monkeypatch.setenv("MASTER_ADDR", "no.such.host.invalid")
    assert list(p2p_rendezvous._guessed_addresses())[-1] == "127.0.0.1"


class FakeChannel:
    """Carries the tensors of another device, by reference."""

    def __init__(self) -> None:
        self.sent: deque[torch.Tensor] = deque()
        self.waited = 0

    def send(self, peer: int, tensors) -> None:
        self.sent.extend(tensors)

    def receive(self, peer: int, leaves: list[Leaf]):
        tensors = [self.sent.popleft().detach() for _ in leaves]
        assert [(t.dtype, t.shape) for t in tensors] == [(x.dtype, x.shape) for x in leaves]
        return tensors, [self]

    def wait(self) -> None:
        self.waited += 1


@pytest.mark.parametrize("size", [10, 10_000], ids=["small", "large"])
def test_tensors_of_other_devices_go_their_own_way(size):
    ours, theirs = socket.socketpair()
    channel = FakeChannel()
    sender, receiver = StreamLink(1, ours, channel), StreamLink(0, theirs, channel)  # type: ignore[arg-type] # a double
    value = (
        torch.ones(size),
        torch.empty(size, device="meta", requires_grad=True),
        torch.arange(3),
        torch.empty(2, device="meta", dtype=torch.bool),
    )
    sender.send(7, value)
    while not receiver.arrived:
        receiver.read()
    _, tag, later = receiver.arrived.popleft()
    assert tag == 7
    assert isinstance(later, Later)
    assert channel.waited == 0
    got = later.get()
    assert channel.waited == 1
    assert [t.device.type for t in got] == ["cpu", "meta", "cpu", "meta"]
    assert [t.requires_grad for t in got] == [False, True, False, False]
    assert [tuple(t.shape) for t in got] == [(size,), (size,), (3,), (2,)]
    assert torch.equal(got[0], value[0])
    sender.close()
    receiver.close()


def test_another_device_needs_a_backend():
    ours, theirs = socket.socketpair()
    link = StreamLink(1, ours, None)
    with pytest.raises(ParameterError, match="needs a process group with a backend"):
        link.send(1, torch.empty(2, device="meta"))
    link.close()
    theirs.close()


def device_channel(rank: int, size: int) -> list:
    """Without an accelerator the channel carries CPU tensors, through gloo."""
    channel = DeviceChannel(None, PAIR)
    values = [torch.arange(6.0).to(dtype).reshape(2, 3).t() for dtype in DTYPES]
    values += [torch.tensor(3.0), torch.empty(0, 2), torch.ones(300_000)]
    got: list[torch.Tensor] = []
    if rank == 0:
        channel.send(1, values)
    else:
        layout, _ = Describer()(tuple(values))
        got, works = channel.receive(0, layout.leaves)
        for work in works:
            work.wait()
        assert all(map(same_leaf, got, values))
        assert [v.stride() for v in got] == [v.stride() for v in values]
    channel.flush()
    dist.barrier()
    channel.close()
    return [len(got), len(values)]


@pytest.mark.gloo
def test_the_device_channel_sends_exactly_what_it_is_given(pool):
    (_, count), (received, _) = pool(2).run(device_channel)
    assert received == count
