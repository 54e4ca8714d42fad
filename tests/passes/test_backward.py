from tests.passes.samples import lines, schedule

from fullbore.passes import MergeBackward, SplitBackward


def test_merge_takes_neighbours_only():
    before = schedule("0F0 0F1 0I0 0W0 0I1 1F0 1I0 1W0 0W1")
    assert lines(MergeBackward()(before)) == ["0F0 0F1 0B0 0I1 1F0 1B0 0W1"]


def test_merge_takes_the_same_stage_and_microbatch_only():
    text = "0F0 0F1 0I0 0I1 0W0 1F1 1I1 0W1 1W1"
    assert lines(MergeBackward()(schedule(text))) == [text]


def test_merge_leaves_overlaps_alone():
    text = "0F0 (0F1;0I0)OVERLAP_F_B 0W0 0B1"
    assert lines(MergeBackward()(schedule(text))) == [text]


def test_split():
    before = schedule("0F0 0F1 0B0 0I1 0W1")
    assert lines(SplitBackward()(before)) == ["0F0 0F1 0I0 0W0 0I1 0W1"]


def test_split_within_an_overlap():
    before = schedule("0F0 (0F1;0B0)OVERLAP_F_B (0B1;0F2)OVERLAP_F_B (0F3;0I2)OVERLAP_F_B 0W2 0B3")
    assert lines(SplitBackward()(before)) == [
        "0F0 (0F1;0I0)OVERLAP_F_B 0W0 (0I1;0F2)OVERLAP_F_B 0W1 (0F3;0I2)OVERLAP_F_B 0W2 0I3 0W3"
    ]
