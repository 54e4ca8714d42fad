"""What every transport promises."""

from collections.abc import Sequence

import pytest
import torch
from tests.runtime.transport.scenario import (
    DOWN,
    P2P,
    UP,
    Play,
    Scene,
    Step,
    everywhere,
    failures,
    message,
    player,
    post,
    received,
    recv,
    send,
)
from tests.runtime.values import DTYPES, VALUES, same

from fullbore.errors import ParameterError, TransportError
from fullbore.runtime.transport import make_tag

pytestmark = pytest.mark.torch


@pytest.fixture(params=["local", "shm", P2P])
def run(request) -> Play:
    """Plays scenes with the transport under test."""
    return player(request)


@pytest.fixture(params=["shm at once", P2P])
def run_apart(request) -> Play:
    """As ``run``, where the ranks share nothing but messages."""
    return player(request)


def receives(run: Play, steps: Sequence[Step]) -> list:
    """What the receives among the steps give."""
    scene = Scene(steps)
    return received(scene, run(scene))


def numbers(values: Sequence[torch.Tensor]) -> list[float]:
    return [float(value.sum()) for value in values]


def test_every_kind_of_value(run: Play):
    steps = [
        step for tag, value in enumerate(VALUES.values()) for step in message(DOWN, tag, value)
    ]
    got = receives(run, steps)
    wrong = [name for name, value in zip(VALUES, got, strict=True) if not same(value, VALUES[name])]
    assert wrong == []


def test_every_dtype_small_and_large(run: Play):
    # Plain pickle, which brings the values to the ranks, does not know float8.
    dtypes = [dtype for dtype in DTYPES if dtype != torch.float8_e4m3fn]
    values = [torch.ones(size).to(dtype) for dtype in dtypes for size in (3, 50_000)]
    steps = [step for tag, value in enumerate(values) for step in message(UP, tag, value)]
    got = receives(run, steps)
    assert all(map(same, got, values))


def test_messages_keep_their_order(run: Play):
    tags = range(12)
    steps = [
        *(post(DOWN, tag) for tag in tags),
        *(send(DOWN, tag, torch.tensor(float(tag))) for tag in tags),
        *(recv(DOWN, tag) for tag in tags),
    ]
    assert numbers(receives(run, steps)) == list(tags)


def test_receives_may_be_posted_after_the_send(run: Play):
    steps = [
        send(DOWN, 1, torch.tensor(1.0)),
        send(DOWN, 2, torch.tensor(2.0)),
        post(DOWN, 1),
        recv(DOWN, 1),
        post(DOWN, 2),
        recv(DOWN, 2),
    ]
    assert numbers(receives(run, steps)) == [1.0, 2.0]


def test_receives_may_be_awaited_in_another_order_than_they_were_posted(run: Play):
    tags, awaited = range(8), [3, 0, 7, 1, 2, 6, 5, 4]
    steps = [
        *(post(DOWN, tag) for tag in tags),
        *(send(DOWN, tag, torch.full((5000,), float(tag))) for tag in tags),
        *(recv(DOWN, tag) for tag in awaited),
    ]
    assert [float(value[0]) for value in receives(run, steps)] == awaited


def test_both_directions_at_once(run: Play):
    steps = []
    for tag in range(20):
        steps += [post(DOWN, tag), post(UP, tag)]
        steps += [send(DOWN, tag, torch.tensor(tag)), send(UP, tag, torch.tensor(-tag))]
        steps += [recv(DOWN, tag), recv(UP, tag)]
    expected = [sign * tag for tag in range(20) for sign in (1, -1)]
    assert numbers(receives(run, steps)) == expected


def test_shapes_may_change_at_any_message(run: Play):
    sizes = [1, 70_000, 3, 0, 9000, 70_000, 2, 300_000, 1, 20, 4096, 70_001]
    values = [torch.arange(float(size)) for size in sizes]
    steps = [
        *(post(DOWN, tag) for tag in range(len(sizes))),
        *(send(DOWN, tag, value) for tag, value in enumerate(values)),
        *(recv(DOWN, tag) for tag in range(len(sizes))),
    ]
    got = receives(run, steps)
    assert all(map(torch.equal, got, values))


def test_received_tensors_stay_as_they_were(run: Play):
    values = [torch.full((20_000,), float(tag)) for tag in range(30)]
    steps = [step for tag, value in enumerate(values) for step in message(DOWN, tag, value)]
    got = receives(run, steps)
    assert [value.unique().tolist() for value in got] == [[float(tag)] for tag in range(30)]


def test_the_sender_keeps_its_graph_and_the_receiver_gets_a_leaf(run: Play):
    weight = torch.ones(3, requires_grad=True)
    sent = weight * 2
    steps = message(DOWN, 1, sent)
    (got,) = receives(run, steps)
    assert got.requires_grad
    assert got.is_leaf
    sent.sum().backward()
    assert weight.grad is not None


def test_a_message_other_than_the_one_posted_is_refused(run: Play):
    tag, other = (make_tag(3, 1, m, backward=False) for m in (0, 1))
    results = run(Scene([send(DOWN, other, torch.ones(1)), post(DOWN, tag), recv(DOWN, tag)]))
    (error,) = failures(results)
    assert isinstance(error, TransportError)
    assert "1RECV_F1 (run 3)" in str(error)
    assert "1RECV_F0 (run 3)" in str(error)


def test_a_message_of_another_run_is_refused(run: Play):
    old, new = (make_tag(epoch, 1, 0, backward=False) for epoch in (1, 2))
    steps = [send(DOWN, old, torch.ones(1)), post(DOWN, new), recv(DOWN, new)]
    (error,) = failures(run(Scene(steps)))
    assert "run 1" in str(error)
    assert "run 2" in str(error)


def test_a_receive_that_was_not_posted_is_refused(run: Play):
    (error,) = failures(run(Scene([recv(DOWN, 1)])))
    assert isinstance(error, TransportError)
    assert "no receive was posted" in str(error)


def test_reset_forgets_what_was_posted_and_sent(run: Play):
    steps = [
        post(UP, 7),
        post(DOWN, 1),
        *(send(DOWN, tag, torch.full((size,), -1.0)) for tag, size in ((1, 2), (2, 20_000))),
        *everywhere("reset"),
        *message(DOWN, 3, torch.tensor(3.0)),
        *message(UP, 4, torch.full((9000,), 4.0)),
        *message(DOWN, 5, torch.full((20_000,), 5.0)),
    ]
    scene = Scene(steps)
    results = run(scene)
    assert failures(results) == []
    assert [float(value.max()) for value in received(scene, results)] == [3.0, 4.0, 5.0]


def test_flush_and_close_at_any_time(run: Play):
    steps = [
        *everywhere("flush"),
        *message(DOWN, 1, torch.ones(3)),
        *everywhere("flush"),
        *everywhere("close"),
    ]
    assert failures(run(Scene(steps))) == []


def test_ranks_that_reset_at_different_times_meet_again(run_apart: Play):
    steps = [
        send(DOWN, 1, torch.tensor(-1.0)),
        Step(0, "reset"),
        send(DOWN, 2, torch.tensor(2.0)),
        Step(1, "reset"),
        post(DOWN, 2),
        recv(DOWN, 2),
    ]
    assert numbers(receives(run_apart, steps)) == [2.0]


def test_a_value_that_cannot_be_sent_spoils_nothing(run_apart: Play):
    steps = [send(DOWN, 1, object()), *message(DOWN, 1, torch.ones(2))]
    scene = Scene(steps)
    results = run_apart(scene)
    assert isinstance(results[0], ParameterError)
    assert same(received(scene, results)[0], torch.ones(2))
