"""Cases A04, A06-A09, A21 and A23: what the verifier must catch."""

import pytest

from fullbore.errors import FormatError, ParameterError
from fullbore.formats import loads
from fullbore.ir import Action, Form, Kind, Placement, Schedule
from fullbore.verify import verify


def one_rank(text: str, *, num_microbatches: int = 2, stages: int = 1) -> Schedule:
    return loads(
        text,
        format="csv",
        placement=Placement((0,) * stages),
        num_microbatches=num_microbatches,
        form=Form.COMPUTE,
    )


def found(schedule: Schedule, **options) -> list[tuple[str, str, str]]:
    return [(each.rule, each.action, each.message) for each in verify(schedule, **options)]


SENDS_FIRST = loads(
    "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2SEND_F0,2RECV_F1,2F1,2SEND_F1\n"
    "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,3RECV_F0,3F0,3RECV_F1,3F1\n",
    format="csv",
    placement=Placement.loop(2, 2),
)


def test_a04_each_rank_sends_before_it_receives():
    assert found(SENDS_FIRST, model="rendezvous") == [
        (
            "deadlock",
            "0SEND_F1",
            "with rendezvous transfers, rank 0 at 0SEND_F1 waits for 1RECV_F1 (rank 1); "
            "rank 1 at 1SEND_F0 waits for 2RECV_F0 (rank 0)",
        )
    ]


@pytest.mark.parametrize("model", ["per_edge", "buffered"])
def test_a04_is_fine_where_a_send_has_somewhere_to_wait(model: str):
    assert found(SENDS_FIRST, model=model) == []


def test_a06_a_microbatch_without_backward_and_one_with_two():
    message = "stage 0 has {} for microbatch {}"
    assert found(one_rank("0F0,0F1,0B0,0I0,0W0")) == [
        ("missing-backward", "", message.format("no backward", 1)),
        ("two-backwards", "0B0", message.format("two backwards, B beside I or W,", 0)),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0F0,0F0,0F1,0B0,0B1", [("duplicate", "0F0")]),
        ("0F0,0F1,0B0,0B0,0B1", [("duplicate", "0B0")]),
        (
            "0F0,0F7,0B0,0B7",
            [
                ("microbatch-range", "0F7"),
                ("microbatch-range", "0B7"),
                ("missing-forward", ""),
                ("missing-backward", ""),
            ],
        ),
        ("0F0,0F1,0B0,0B1,5F0", [("stage-range", "5F0")]),
    ],
)
def test_a07_wrong_work_is_named(text: str, expected: list[tuple[str, str]]):
    assert [(rule, action) for rule, action, _ in found(one_rank(text))] == expected


def test_a07_no_microbatch():
    program = (Action(0, Kind.F), Action(0, Kind.B))
    absent = found(Schedule((program,), Placement((0,)), 1))
    assert [(rule, action) for rule, action, _ in absent[:2]] == [
        ("microbatch-absent", "0F"),
        ("microbatch-absent", "0B"),
    ]
    with pytest.raises(FormatError, match="row 1, column 1: F needs a microbatch"):
        one_rank("0F,0B")


def test_a08_two_ranks_wait_for_each_other():
    schedule = loads("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", format="csv")
    assert found(schedule) == [
        (
            "cannot-run",
            "0B0",
            "rank 0 at 0B0 waits for 1B0 (rank 1); rank 1 at 1F1 waits for 0F1 (rank 0)",
        )
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1F0,0F0,1B0,0B0", "rank 0 at 1F0 waits for 0F0 (later on the same rank)"),
        ("0F0,1F0,0B0,1B0", "rank 0 at 0B0 waits for 1B0 (later on the same rank)"),
    ],
)
def test_a09_two_stages_of_a_rank_in_the_wrong_order(text: str, message: str):
    schedule = one_rank(text, num_microbatches=1, stages=2)
    assert [(rule, told) for rule, _, told in found(schedule)] == [("cannot-run", message)]


def test_a21_an_order_that_can_never_be_satisfied():
    """Every rank but the first runs well until the last microbatch, which comes first there."""
    num_ranks, count = 8, 500
    orders = [range(count), *[(*range(count - 1), count - 1)] * (num_ranks - 1)]
    programs = [
        [Action(rank, Kind.F, m) for m in order] + [Action(rank, Kind.B, m) for m in order]
        for rank, order in enumerate(orders)
    ]
    programs[0] = programs[0][:-1]
    programs[0].insert(count - 1, Action(0, Kind.B, count - 1))
    schedule = Schedule(tuple(map(tuple, programs)), Placement.linear(num_ranks), count)
    [(rule, _, message)] = [each for each in found(schedule) if each[0] != "accumulation-order"]
    assert rule == "cannot-run"
    assert message.startswith("rank 0 at 0B499 waits for 0F499 (later on the same rank)")


def test_a23_ranks_with_gaps():
    with pytest.raises(ParameterError, match="rank 1 holds no stage"):
        Placement((0, 2))


def test_a23_a_dict_of_ranks():
    with pytest.raises(ParameterError, match="takes a Schedule, got a dict"):
        verify({0: ["0F0", "0B0"], 2: ["1F0", "1B0"]})  # type: ignore[arg-type]
