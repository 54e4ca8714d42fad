"""What ranks see when one of them fails, stalls or leaves."""

import os
import signal
import time

import pytest
import torch
from tests.runtime.transport.scenario import (
    CHAIN,
    DOWN,
    P2P,
    PAIR,
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

from fullbore.errors import ExecutionError, PeerFailed, TransportError, TransportTimeout
from fullbore.runtime.launch import launch
from fullbore.runtime.transport import Transport, make_tag

pytestmark = pytest.mark.torch

LARGE = torch.ones(3_000_000)


@pytest.fixture(params=["shm at once", P2P])
def run(request) -> Play:
    """Plays scenes, every rank by itself, with the transport under test."""
    return player(request)


def test_an_abort_ends_every_wait_and_names_the_rank_that_failed(run: Play):
    waits = [((1, 0), 7), ((2, 1), 7), ((3, 2), 7)]
    steps = [post(*wait) for wait in waits]
    steps += [Step(3, "abort", ("ValueError: boom (rank 3, stage 3, action 3F0)",))]
    steps += [recv(*wait) for wait in waits]
    scene = Scene(steps, num_ranks=4, edges=CHAIN)
    errors = received(scene, run(scene))
    assert [type(error) for error in errors] == [PeerFailed] * 3
    assert {str(error) for error in errors} == {
        "rank 3 failed: ValueError: boom (rank 3, stage 3, action 3F0)"
    }


def test_an_abort_ends_the_wait_of_a_sender(run: Play):
    steps = [send(DOWN, tag, torch.ones(1)) for tag in range(20)]
    (error,) = failures(run(Scene([Step(1, "abort", ("boom",)), *steps])))[:1]
    assert isinstance(error, PeerFailed)
    assert "rank 1 failed: boom" in str(error)


def test_ranks_go_on_after_a_failure(run: Play):
    steps = [
        post(UP, 1),
        send(DOWN, 1, torch.tensor(-1.0)),
        Step(1, "abort", ("boom",)),
        recv(UP, 1),
        *everywhere("abort", "never heard: the first failure is the one that counts"),
        *everywhere("reset"),
        *message(DOWN, 2, torch.tensor(2.0)),
        *message(UP, 3, torch.ones(50_000)),
    ]
    scene = Scene(steps)
    failed, small, large = received(scene, run(scene))
    assert isinstance(failed, PeerFailed)
    assert float(small) == 2.0
    assert float(large.sum()) == 50_000


def test_a_silent_peer_is_named_when_time_is_up(run: Play):
    tag = make_tag(4, 0, 2, backward=True)
    scene = Scene([post(UP, tag), recv(UP, tag)], timeout=0.2)
    (error,) = failures(run(scene))
    assert isinstance(error, TransportTimeout)
    assert str(error) == ("rank 0 waited 0.2 s for rank 1 to send the message for 0RECV_B2 (run 4)")


def test_a_sender_is_not_more_than_sixteen_messages_ahead(run: Play):
    sends = [send(DOWN, tag, torch.ones(1)) for tag in range(17)]
    (error,) = failures(run(Scene(sends, timeout=0.2)))
    assert isinstance(error, TransportTimeout)
    assert "rank 0 waited 0.2 s for rank 1 to post the receive 0RECV_F8" in str(error)


def test_posts_alone_let_a_sender_go_on(run: Play):
    tags = range(100)
    steps = [post(DOWN, tag) for tag in tags]
    steps += [send(DOWN, tag, torch.tensor(tag)) for tag in tags]
    steps += [recv(DOWN, tag) for tag in tags]
    scene = Scene(steps)
    assert [int(value) for value in received(scene, run(scene))] == list(tags)


def test_both_may_send_much_before_either_receives(run: Play):
    tags = range(12)
    steps = []
    for edge in (DOWN, UP):
        steps += [post(edge, tag) for tag in tags]
        steps += [send(edge, tag, torch.ones(1000 + 250_000 * (tag % 3))) for tag in tags]
    steps += [recv(edge, tag) for edge in (DOWN, UP) for tag in tags]
    scene = Scene(steps)
    sizes = [1000 + 250_000 * (tag % 3) for tag in tags]
    assert [len(value) for value in received(scene, run(scene))] == sizes * 2


def test_what_a_peer_sent_before_it_left_still_arrives(run: Play):
    steps = [
        *(post(DOWN, tag) for tag in range(30)),
        *(send(DOWN, tag, torch.tensor(tag)) for tag in range(3)),
        send(DOWN, 3, LARGE),
        Step(0, "close"),
        *(recv(DOWN, tag) for tag in range(5)),
    ]
    scene = Scene(steps)
    *values, large, error = received(scene, run(scene))
    assert [int(value) for value in values] == [0, 1, 2]
    assert torch.equal(large, LARGE)
    assert isinstance(error, PeerFailed)
    assert str(error) == "rank 0 failed: it has closed its transport"


def test_a_group_that_lost_a_rank_says_so(run: Play):
    steps = [Step(0, "close"), post(DOWN, 1), recv(DOWN, 1), Step(1, "reset")]
    results = run(Scene(steps))
    assert isinstance(results[2], PeerFailed)
    assert isinstance(results[3], TransportError)
    assert "rank 0 is gone" in str(results[3])


def test_a_schedule_for_another_number_of_ranks_is_refused(run: Play):
    results = run(Scene([Step(0, "connect", (3, CHAIN))]))
    assert "3 ranks, but 2 were started" in str(results[0])


def die_with_a_helper(transport: Transport, rank: int, report) -> None:
    """Rank 1 forks a helper, as a DataLoader does, and is killed; rank 0 waits for it."""
    transport.connect(2, PAIR)
    if rank == 1:
        helper = os.fork()
        if not helper:
            time.sleep(60)
            os._exit(0)
        report(helper)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    transport.post(UP, 1)
    try:
        transport.recv(UP, 1)
    except PeerFailed as error:
        report(str(error))
        raise


@pytest.mark.gloo
@pytest.mark.parametrize("transport", ["shm", "p2p"])
def test_a_killed_peer_is_noticed_though_its_helper_lives(transport):
    reports = []
    try:
        with pytest.raises(ExecutionError, match="rank 1: the process was killed by SIGKILL"):
            launch(
                die_with_a_helper,
                2,
                transport=transport,
                on_report=lambda _, value: reports.append(value),
            )
        helper, seen = reports
        os.kill(helper, 0)  # it does live
        assert seen == "rank 1 failed: its process is gone"
    finally:
        os.kill(reports[0], signal.SIGKILL)
