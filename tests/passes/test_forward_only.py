import pytest
from tests.passes.samples import built, lines, schedule

from fullbore.passes import BatchCommunication, ForwardOnly, SinkReceives, lower
from fullbore.schedules import build
from fullbore.verify import check


def test_compute_form():
    before = schedule("0F0 (0F1;0B0)OVERLAP_F_B 0F2 0I1 0W1 0B2")
    after = ForwardOnly()(before)
    assert lines(after) == ["0F0 0F1 0F2"]
    assert after.forward_only
    assert after.form is before.form


def test_pairs_keep_their_forward_half():
    before = SinkReceives()(lower(build("1f1b", num_ranks=2, num_microbatches=3)))
    assert lines(BatchCommunication()(before)) == [
        "0F0 0SEND_F0 0F1 (0SEND_F1;0RECV_B0)SEND_F_RECV_B 0B0 "
        "0F2 (0SEND_F2;0RECV_B1)SEND_F_RECV_B 0B1 0RECV_B2 0B2",
        "1RECV_F0 1F0 1B0 (1SEND_B0;1RECV_F1)SEND_B_RECV_F 1F1 1B1 "
        "(1SEND_B1;1RECV_F2)SEND_B_RECV_F 1F2 1B2 1SEND_B2",
    ]
    after = ["0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2", "1RECV_F0 1F0 1RECV_F1 1F1 1RECV_F2 1F2"]
    assert lines(ForwardOnly()(BatchCommunication()(before))) == after
    assert lines(ForwardOnly()(before)) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("0UNSHARD 0F0 0B0 0REDUCE_GRAD 0RESHARD", "0UNSHARD 0F0 0RESHARD"),
        ("0UNSHARD 0F0 0RESHARD 0UNSHARD 0B0 0RESHARD", "0UNSHARD 0F0 0RESHARD"),
        (
            "0UNSHARD 0F0 0F1 0RESHARD 0UNSHARD 0B0 0RESHARD 0UNSHARD (0F2;0B1)OVERLAP_F_B "
            "0B2 0RESHARD",
            "0UNSHARD 0F0 0F1 0F2 0RESHARD",
        ),
        (
            "0UNSHARD 0F0 1UNSHARD 1F0 1B0 0RESHARD 1RESHARD 0UNSHARD 0B0 0RESHARD",
            "0UNSHARD 0F0 1UNSHARD 1F0 0RESHARD 1RESHARD",
        ),
        (
            "0UNSHARD 0F0 0RESHARD 1UNSHARD 1F0 1B0 1RESHARD 0UNSHARD 0F1 0RESHARD "
            "1UNSHARD 1F1 1B1 1RESHARD 0UNSHARD 0B0 0B1 0RESHARD",
            "0UNSHARD 0F0 0RESHARD 1UNSHARD 1F0 1RESHARD 0UNSHARD 0F1 0RESHARD "
            "1UNSHARD 1F1 1RESHARD",
        ),
    ],
)
def test_unshards_stay_where_a_forward_uses_them(before: str, after: str):
    assert lines(ForwardOnly()(schedule(before))) == [after]


def test_results_are_valid_and_final():
    for found in built(ranks=(1, 3), per_rank=(2,), microbatches=(1, 4)):
        for form in (found, lower(found, shard=True, max_active_stages=1, sink=True, batch=True)):
            after = ForwardOnly()(form)
            check(after)
            assert ForwardOnly()(after) == after
