import pytest
from tests.passes.samples import built, lines, schedule

from fullbore.errors import PassError
from fullbore.ir import Kind
from fullbore.passes import BatchCommunication, SinkReceives, UnbatchCommunication, lower
from fullbore.schedules import build
from fullbore.verify import check, verify

STEADY = """
0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1
1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1
"""


def test_down_to_the_use_or_to_the_send_that_would_wait_for_it():
    """Rank 0 sends 0F1's output before it receives, so rank 1 receives that before it sends."""
    assert lines(SinkReceives()(schedule(STEADY))) == [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1B0 1RECV_F1 1SEND_B0 1F1 1B1 1SEND_B1",
    ]


def test_never_up():
    """Rank 1 could receive before its send, too, but it was not the first to."""
    text = """
    0F0 0SEND_F0 0F1 0RECV_B0 0SEND_F1 0B0 0RECV_B1 0B1
    1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1
    """
    assert SinkReceives()(schedule(text)) == schedule(text)


def test_pairs_are_taken_apart():
    pairs = BatchCommunication()(SinkReceives()(schedule(STEADY)))
    assert any(action.parts for action in pairs.programs[0])
    assert SinkReceives()(pairs) == SinkReceives()(UnbatchCommunication()(pairs))


def without_receives(found) -> list[list]:
    receives = (Kind.RECV_F, Kind.RECV_B)
    return [[a for a in program if a.kind not in receives] for program in found.programs]


def places(found) -> dict:
    """Of each receive, how many other actions precede it."""
    result = {}
    for program in found.programs:
        others = 0
        for action in program:
            if action.kind in (Kind.RECV_F, Kind.RECV_B):
                result[action] = others
            else:
                others += 1
    return result


def test_results_are_valid_and_final_and_only_receives_moved_down():
    for found in built(ranks=(1, 2, 3), per_rank=(2,), microbatches=(1, 5)):
        before = lower(found)
        after = SinkReceives()(before)
        check(after, model="rendezvous")
        assert SinkReceives()(after) == after
        assert without_receives(after) == without_receives(before)
        was, now = places(before), places(after)
        assert was.keys() == now.keys()
        assert all(now[receive] >= was[receive] for receive in was)


def one_later(found, rank: int, step: int):
    """The schedule with a receive moved behind the next action that is none."""
    program = list(found.programs[rank])
    receive = program.pop(step)
    while program[step].kind in (Kind.RECV_F, Kind.RECV_B):
        step += 1
    program.insert(step + 1, receive)
    programs = list(found.programs)
    programs[rank] = tuple(program)
    return found.with_programs(programs)


@pytest.mark.parametrize("name", ["1f1b", "interleaved_1f1b", "zbv", "dualpipev", "looped_bfs"])
def test_no_receive_could_be_a_step_later(name: str):
    found = SinkReceives()(lower(build(name, num_ranks=3, num_microbatches=4)))
    for rank, step, action in found.actions():
        if action.kind in (Kind.RECV_F, Kind.RECV_B):
            assert not valid(one_later(found, rank, step)), f"{action} could be later"


def valid(found) -> bool:
    return not any(finding.severity == "error" for finding in verify(found))


def test_what_blocking_sends_leave_stuck_is_refused():
    text = """
    0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1
    1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1
    """
    check(schedule(text), model="buffered")
    with pytest.raises(PassError) as caught:
        SinkReceives()(schedule(text))
    assert str(caught.value) == (
        "sink_receives on schedule: sends that block until they are received leave it stuck: "
        "rank 0 at 0SEND_F1 waits for rank 1; rank 1 at 1SEND_B0 waits for rank 0"
    )
