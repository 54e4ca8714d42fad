from typing import Any

import pytest

from fullbore.errors import ParameterError
from fullbore.ir import Action, Kind, Placement, fuse


@pytest.mark.parametrize(
    ("placement", "ranks", "shape"),
    [
        (Placement.linear(3), (0, 1, 2), "linear"),
        (Placement.loop(3, 1), (0, 1, 2), "linear"),
        (Placement.loop(3, 2), (0, 1, 2, 0, 1, 2), "loop"),
        (Placement.vee(3), (0, 1, 2, 2, 1, 0), "vee"),
        (Placement.linear(1), (0,), "linear"),
        (Placement.loop(1, 3), (0, 0, 0), "loop"),
        (Placement.vee(1), (0, 0), "vee"),
        (Placement((0, 0, 1, 1)), (0, 0, 1, 1), "custom"),
        (Placement((1, 0)), (1, 0), "custom"),
        (Placement((0, 1, 0)), (0, 1, 0), "custom"),
    ],
)
def test_shapes(placement: Placement, ranks: tuple[int, ...], shape: str):
    assert placement.ranks == ranks
    assert placement.shape == shape
    assert placement.num_stages == len(ranks)
    assert placement.num_ranks == len(set(ranks))


def test_stages_of_a_rank():
    assert [Placement.vee(3).stages_of(rank) for rank in range(4)] == [(0, 5), (1, 4), (2, 3), ()]


def test_the_rank_of_a_stage():
    assert [Placement.vee(2).rank_of(stage) for stage in range(4)] == [0, 1, 1, 0]
    for stage in (-1, 4):
        with pytest.raises(ParameterError, match=f"no stage {stage}; stages are 0..3"):
            Placement.vee(2).rank_of(stage)


def test_where_the_pipeline_crosses_ranks():
    placement = Placement.vee(2)
    assert [placement.crosses(stage) for stage in range(4)] == [False, True, False, True]


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ((), "at least one stage"),
        ((0, -1), "rank -1 is negative"),
        ((0, 2), "rank 1 holds no stage"),
        ((1, 1), "rank 0 holds no stage"),
        ((0, 10**9), "rank 1 holds no stage"),
        ([0, 1], r"a tuple of whole numbers such as .*; got \[0, 1\]"),
        ("01", "a tuple of whole numbers such as .*; got '01'"),
        ((0, 1.0), "a tuple of whole numbers"),
        ((False, True), "a tuple of whole numbers"),
        (None, "a tuple of whole numbers"),
    ],
)
def test_what_is_no_placement(ranks: Any, message: str):
    with pytest.raises(ParameterError, match=message):
        Placement(ranks)


def test_sizes_must_be_positive():
    with pytest.raises(ParameterError):
        Placement.linear(0)
    with pytest.raises(ParameterError):
        Placement.loop(2, 0)
    with pytest.raises(ParameterError):
        Placement.vee(0)


@pytest.mark.parametrize("wrong", [1.5, "2", None, float("nan"), [2], -1])
def test_sizes_must_be_whole(wrong: Any):
    for make in (Placement.linear, Placement.vee, lambda count: Placement.loop(2, count)):
        with pytest.raises(ParameterError, match="must be a whole number from 1 on; got"):
            make(wrong)


def test_sizes_must_be_possible():
    with pytest.raises(ParameterError, match="use 10,000,000 stages at most"):
        Placement.loop(10, 10**12)


def forwards(*stages: int) -> list[Action]:
    return [Action(stage, Kind.F, 0) for stage in stages]


def test_a_stage_is_where_it_first_appears():
    overlap = fuse(Kind.OVERLAP_F_B, *forwards(1, 2))
    assert Placement.infer([forwards(0, 3, 0), [overlap]]) == Placement.vee(2)
    assert Placement.infer([forwards(0, 1), forwards(1, 2)]) == Placement((0, 0, 1))


@pytest.mark.parametrize(
    ("programs", "message"),
    [
        ([], "no action"),
        ([[], []], "no action"),
        ([forwards(0, 2)], "stage 1 appears on no rank although stage 2 does"),
        ([forwards(1)], "stage 0 appears on no rank although stage 1 does"),
        ([forwards(10**9)], "stage 0 appears on no rank"),
        ([forwards(0), []], "rank 1 holds no stage"),
        ([forwards(0, 1), forwards(1)], "rank 1 holds no stage"),
    ],
)
def test_what_implies_no_placement(programs: list[list[Action]], message: str):
    with pytest.raises(ParameterError, match=message):
        Placement.infer(programs)


def test_numbers_of_stages_add_up_by_rank():
    assert Placement((0, 1, 1, 0)).sum_by_rank([1, 2, 3, 4]) == [5, 5]
    with pytest.raises(ValueError, match="shorter"):
        Placement.linear(3).sum_by_rank([1, 2])
