"""What every transport promises."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.pool import Pool
from tests.runtime.transport.scenario import (
    DOWN,
    EDGES,
    UP,
    Step,
    everywhere,
    failures,
    message,
    play,
    post,
    received,
    recv,
    send,
)
from tests.runtime.values import DTYPES, VALUES, same

from fullbore.errors import ParameterError, TransportError
from fullbore.runtime.transport import (
    LocalTransport,
    P2PTransport,
    SharedMemoryTransport,
    make_tag,
)
from fullbore.runtime.transport.shm import socket_pairs

pytestmark = pytest.mark.torch

Run = Callable[[Sequence[Step]], Mapping[int, Any]]


def local(steps: Sequence[Step]) -> Mapping[int, Any]:
    transport = LocalTransport()
    transport.connect(2, EDGES)
    return play(steps, {0: transport, 1: transport})


def shm(steps: Sequence[Step]) -> Mapping[int, Any]:
    ends = socket_pairs(2)
    ranks = {rank: SharedMemoryTransport(rank, ends[rank], timeout=10.0) for rank in (0, 1)}
    for transport in ranks.values():
        transport.connect(2, EDGES)
    try:
        return play(steps, ranks)
    finally:
        for transport in ranks.values():
            transport.close()


def play_p2p(rank: int, size: int, steps: Sequence[Step]) -> dict[int, Any]:
    """What each rank of a process group does."""
    transport = P2PTransport(timeout=10.0)
    transport.connect(size, EDGES)
    results = play(steps, {rank: transport})
    dist.barrier()
    transport.close()
    return results


@pytest.fixture
def p2p(pool: Callable[[int], Pool]) -> Run:
    def run(steps: Sequence[Step]) -> Mapping[int, Any]:
        first, second = pool(2).run(play_p2p, steps)
        return {**first, **second}

    return run


GLOO = pytest.param("p2p", marks=pytest.mark.gloo)


@pytest.fixture(params=["local", "shm", GLOO])
def run(request) -> Run:
    """Plays the steps of two ranks that are connected both ways; gives the steps' results."""
    return players(request)


@pytest.fixture(params=["shm", GLOO])
def run_apart(request) -> Run:
    """As ``run``, where the ranks share nothing but messages."""
    return players(request)


def players(request) -> Run:
    name = request.param
    found: Run = (
        request.getfixturevalue(name) if name == "p2p" else {"local": local, "shm": shm}[name]
    )
    return found


def numbers(values: Sequence[torch.Tensor]) -> list[float]:
    return [float(value.sum()) for value in values]


def test_every_kind_of_value(run: Run):
    steps = [
        step for tag, value in enumerate(VALUES.values()) for step in message(DOWN, tag, value)
    ]
    got = received(steps, run(steps))
    wrong = [name for name, value in zip(VALUES, got, strict=True) if not same(value, VALUES[name])]
    assert wrong == []


def test_every_dtype_small_and_large(run: Run):
    # Plain pickle, which brings the values to the ranks, does not know float8.
    dtypes = [dtype for dtype in DTYPES if dtype != torch.float8_e4m3fn]
    values = [torch.ones(size).to(dtype) for dtype in dtypes for size in (3, 50_000)]
    steps = [step for tag, value in enumerate(values) for step in message(UP, tag, value)]
    got = received(steps, run(steps))
    assert all(map(same, got, values))


def test_messages_keep_their_order(run: Run):
    tags = range(12)
    steps = [
        *(post(DOWN, tag) for tag in tags),
        *(send(DOWN, tag, torch.tensor(float(tag))) for tag in tags),
        *(recv(DOWN, tag) for tag in tags),
    ]
    assert numbers(received(steps, run(steps))) == list(tags)


def test_receives_may_be_posted_after_the_send(run: Run):
    steps = [
        send(DOWN, 1, torch.tensor(1.0)),
        send(DOWN, 2, torch.tensor(2.0)),
        post(DOWN, 1),
        recv(DOWN, 1),
        post(DOWN, 2),
        recv(DOWN, 2),
    ]
    assert numbers(received(steps, run(steps))) == [1.0, 2.0]


def test_receives_may_be_awaited_in_another_order_than_they_were_posted(run: Run):
    tags, awaited = range(8), [3, 0, 7, 1, 2, 6, 5, 4]
    steps = [
        *(post(DOWN, tag) for tag in tags),
        *(send(DOWN, tag, torch.full((5000,), float(tag))) for tag in tags),
        *(recv(DOWN, tag) for tag in awaited),
    ]
    assert [float(value[0]) for value in received(steps, run(steps))] == awaited


def test_both_directions_at_once(run: Run):
    steps = []
    for tag in range(20):
        steps += [post(DOWN, tag), post(UP, tag)]
        steps += [send(DOWN, tag, torch.tensor(tag)), send(UP, tag, torch.tensor(-tag))]
        steps += [recv(DOWN, tag), recv(UP, tag)]
    expected = [sign * tag for tag in range(20) for sign in (1, -1)]
    assert numbers(received(steps, run(steps))) == expected


def test_shapes_may_change_at_any_message(run: Run):
    sizes = [1, 70_000, 3, 0, 9000, 70_000, 2, 300_000, 1, 20, 4096, 70_001]
    values = [torch.arange(float(size)) for size in sizes]
    steps = [
        *(post(DOWN, tag) for tag in range(len(sizes))),
        *(send(DOWN, tag, value) for tag, value in enumerate(values)),
        *(recv(DOWN, tag) for tag in range(len(sizes))),
    ]
    got = received(steps, run(steps))
    assert all(map(torch.equal, got, values))


def test_received_tensors_stay_as_they_were(run: Run):
    values = [torch.full((20_000,), float(tag)) for tag in range(30)]
    steps = [step for tag, value in enumerate(values) for step in message(DOWN, tag, value)]
    got = received(steps, run(steps))
    assert [value.unique().tolist() for value in got] == [[float(tag)] for tag in range(30)]


def test_the_sender_keeps_its_graph_and_the_receiver_gets_a_leaf(run: Run):
    weight = torch.ones(3, requires_grad=True)
    sent = weight * 2
    steps = message(DOWN, 1, sent)
    (got,) = received(steps, run(steps))
    assert got.requires_grad
    assert got.is_leaf
    sent.sum().backward()
    assert weight.grad is not None


def test_a_message_other_than_the_one_posted_is_refused(run: Run):
    tag, other = (make_tag(3, 1, m, backward=False) for m in (0, 1))
    results = run([send(DOWN, other, torch.ones(1)), post(DOWN, tag), recv(DOWN, tag)])
    (error,) = failures(results)
    assert isinstance(error, TransportError)
    assert "1RECV_F1 (run 3)" in str(error)
    assert "1RECV_F0 (run 3)" in str(error)


def test_a_message_of_another_run_is_refused(run: Run):
    old, new = (make_tag(epoch, 1, 0, backward=False) for epoch in (1, 2))
    (error,) = failures(run([send(DOWN, old, torch.ones(1)), post(DOWN, new), recv(DOWN, new)]))
    assert "run 1" in str(error)
    assert "run 2" in str(error)


def test_a_receive_that_was_not_posted_is_refused(run: Run):
    (error,) = failures(run([recv(DOWN, 1)]))
    assert isinstance(error, TransportError)
    assert "no receive was posted" in str(error)


def test_reset_forgets_what_was_posted_and_sent(run: Run):
    steps = [
        post(UP, 7),
        post(DOWN, 1),
        *(send(DOWN, tag, torch.full((size,), -1.0)) for tag, size in ((1, 2), (2, 20_000))),
        *everywhere("reset"),
        *message(DOWN, 3, torch.tensor(3.0)),
        *message(UP, 4, torch.full((9000,), 4.0)),
        *message(DOWN, 5, torch.full((20_000,), 5.0)),
    ]
    results = run(steps)
    assert failures(results) == []
    assert [float(value.max()) for value in received(steps, results)] == [3.0, 4.0, 5.0]


def test_flush_and_close_at_any_time(run: Run):
    steps = [
        *everywhere("flush"),
        *message(DOWN, 1, torch.ones(3)),
        *everywhere("flush"),
        *everywhere("close"),
    ]
    assert failures(run(steps)) == []


def test_ranks_that_reset_at_different_times_meet_again(run_apart: Run):
    steps = [
        send(DOWN, 1, torch.tensor(-1.0)),
        Step(0, "reset"),
        send(DOWN, 2, torch.tensor(2.0)),
        Step(1, "reset"),
        post(DOWN, 2),
        recv(DOWN, 2),
    ]
    assert numbers(received(steps, run_apart(steps))) == [2.0]


def test_a_value_that_cannot_be_sent_spoils_nothing(run_apart: Run):
    steps = [send(DOWN, 1, object()), *message(DOWN, 1, torch.ones(2))]
    results = run_apart(steps)
    assert isinstance(results[0], ParameterError)
    assert same(received(steps, results)[0], torch.ones(2))
