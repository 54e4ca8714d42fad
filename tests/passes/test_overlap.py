import pytest
from tests.passes.samples import built, compute, lines, schedule

from fullbore.errors import PassError
from fullbore.passes import ExpandOverlap, FuseOverlap
from fullbore.verify import check


def test_neighbours_that_need_each_other_stay_apart():
    text = "0F0 0B0 0F1 0I1 0W1"
    assert lines(FuseOverlap()(schedule(text))) == ["0F0 (0B0;0F1)OVERLAP_F_B 0I1 0W1"]


def test_either_order_and_input_gradients():
    before = schedule("0F0 0F1 0I0 0W0 0I1 0F2 0W1 0B2")
    assert lines(FuseOverlap()(before)) == [
        "0F0 (0F1;0I0)OVERLAP_F_B 0W0 (0I1;0F2)OVERLAP_F_B 0W1 0B2"
    ]


def test_need_through_another_rank():
    """Rank 1 runs 1F1 before 1B0, so on rank 0 0B0 needs 0F1 although the rule does not say so."""
    text = "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1"
    assert lines(FuseOverlap()(schedule(text))) == [
        "0F0 0F1 0B0 0B1",
        "1F0 (1F1;1B0)OVERLAP_F_B 1B1",
    ]


def test_the_steady_state_of_1f1b():
    text = "0F0 0F1 0B0 0F2 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2"
    assert lines(FuseOverlap()(schedule(text))) == [
        "0F0 0F1 (0B0;0F2)OVERLAP_F_B 0B1 0B2",
        "1F0 (1B0;1F1)OVERLAP_F_B (1B1;1F2)OVERLAP_F_B 1B2",
    ]


def test_what_is_fused_already_stays():
    text = "0F0 (0F1;0B0)OVERLAP_F_B 0F2 0B1 0B2"
    assert lines(FuseOverlap()(schedule(text))) == [
        "0F0 (0F1;0B0)OVERLAP_F_B (0F2;0B1)OVERLAP_F_B 0B2"
    ]


def test_expand_is_its_inverse():
    fused = 0
    for before in built(ranks=(1, 3), per_rank=(1, 2), microbatches=(1, 5)):
        plain = ExpandOverlap()(before)
        together = FuseOverlap()(plain)
        check(together)
        assert ExpandOverlap()(together) == plain
        assert compute(together) == compute(before)
        fused += sum(bool(action.parts) for _, _, action in together.actions())
    assert fused > 50


def test_an_order_that_cannot_run_is_refused():
    with pytest.raises(
        PassError, match=r"fuse_overlap on .*: rank 0 at step 0, 0B0, waits for 0F0"
    ):
        FuseOverlap()(schedule("0B0 0F0"))
