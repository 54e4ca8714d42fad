from collections.abc import Iterator
from itertools import pairwise

import pytest
from tests.passes.samples import TRANSFERS, built, compute, lines, schedule

from fullbore.errors import PassError
from fullbore.ir import KINDS, Action, Form, Kind, Placement, Schedule, mate
from fullbore.passes import InsertCommunication
from fullbore.schedules import build
from fullbore.verify import check

STEADY = """
0F0 0F1 0B0 0F2 0B1 0B2
1F0 1B0 1F1 1B1 1F2 1B2
"""


def test_steady_state():
    """Rank 0 sends forward while rank 1 sends backward: both agree that forward goes first."""
    assert lines(InsertCommunication()(schedule(STEADY))) == [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0F2 0SEND_F2 0RECV_B1 0B1 0RECV_B2 0B2",
        "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1RECV_F2 1B1 1SEND_B1 1F2 1B2 1SEND_B2",
    ]


def test_neighbours_on_one_rank_need_no_message():
    before = Schedule(schedule("0F0 1F0 2F0 2B0 1B0 0B0").programs, Placement((0, 0, 0)), 1)
    after = InsertCommunication()(before)
    assert after.programs == before.programs
    assert after.form is Form.LOWERED


def test_an_overlap_sends_both_results_after_it():
    text = "0F0 3F0 (0F1;3B0)OVERLAP_F_B 0B0 3F1 3B1 0B1\n1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1"
    before = Schedule(schedule(text).programs, Placement((0, 1, 1, 0)), 2)
    first = lines(InsertCommunication()(before))[0]
    assert "(0F1;3B0)OVERLAP_F_B 0SEND_F1 3SEND_B0" in first


def neighbours(found: Schedule) -> Iterator[tuple[Action, Action]]:
    for program in found.programs:
        yield from pairwise(program)


@pytest.mark.slow
@pytest.mark.parametrize("p", range(1, 9))
def test_every_family_in_many_sizes(p: int):
    sizes = {"ranks": (p,), "per_rank": (1, 2, 3), "microbatches": (1, 2, 3, 4, 5, 7, 8, 9, 16)}
    for before in built(**sizes):
        after = InsertCommunication()(before)
        check(after, model="rendezvous")
        assert compute(after) == compute(before)


def test_sends_follow_their_producer_directly():
    makes = {Kind.SEND_F: (Kind.F,), Kind.SEND_B: (Kind.B, Kind.I)}
    for before in built(ranks=(1, 3), per_rank=(2,), microbatches=(1, 5)):
        after = InsertCommunication()(before)
        check(after, model="rendezvous")
        for action, send in neighbours(after):
            if send.kind in makes and action.kind not in TRANSFERS:
                made = [leaf for leaf in action.leaves if leaf.kind in makes[send.kind]]
                assert [(leaf.stage, leaf.microbatch) for leaf in made] == [
                    (send.stage, send.microbatch)
                ]


def test_every_send_has_its_receive_and_the_reverse():
    found = InsertCommunication()(build("dualpipev", num_ranks=3, num_microbatches=7))
    transfers = [action for _, _, action in found.actions() if action.kind in TRANSFERS]
    assert len(set(transfers)) == len(transfers) == 4 * 4 * 7
    assert {mate(action) for action in transfers} == set(transfers)
    assert all(KINDS[action.kind].mate for action in transfers)


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        (
            "0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0",
            "rank 0 at step 1, 0B0, waits for 1B0 or 1I0; rank 1 at step 0, 1F1, waits for 0F1",
        ),
        ("0B0 0F0", "rank 0 at step 0, 0B0, waits for 0F0"),
        ("0F0 0W0 0I0", "rank 0 at step 1, 0W0, waits for 0I0"),
    ],
)
def test_an_order_that_cannot_run_is_refused(text: str, waits: str):
    with pytest.raises(PassError) as caught:
        InsertCommunication()(schedule(text))
    assert str(caught.value) == f"insert_communication on schedule: the order cannot run: {waits}"
