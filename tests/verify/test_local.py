"""Local stages against the placement."""

import re

import pytest

from fullbore.errors import ParameterError
from fullbore.schedules import build
from fullbore.verify import check_local_stages

ZBV = build("zbv_zero_bubble", num_ranks=2, num_microbatches=4)
LOOPED = build("interleaved_1f1b", num_ranks=2, num_microbatches=4, stages_per_rank=2)


@pytest.mark.parametrize(("rank", "stages"), [(0, [0, 3]), (1, [2, 1])])
def test_the_right_stages_in_any_order(rank: int, stages: list[int]):
    check_local_stages(ZBV, rank, stages)


@pytest.mark.parametrize(
    ("schedule", "rank", "stages", "expected"),
    [
        (
            ZBV,
            0,
            [0, 2],
            "zbv_zero_bubble: rank 0 must hold stages 0, 3 (vee placement), got 0, 2: "
            "stage 3 is missing, stage 2 belongs to rank 1",
        ),
        (
            LOOPED,
            1,
            [1, 2],
            "interleaved_1f1b: rank 1 must hold stages 1, 3 (loop placement), got 1, 2: "
            "stage 3 is missing, stage 2 belongs to rank 0",
        ),
        (LOOPED, 0, [], "got none: stage 0 is missing, stage 2 is missing"),
        (LOOPED, 0, [0, 0, 2], "got 0, 0, 2: stage 0 is given 2 times"),
        (LOOPED, 0, [0, 2, 9, -1], "stage -1 does not exist, stage 9 does not exist"),
        (LOOPED, 2, [0, 2], "interleaved_1f1b: there is no rank 2; ranks are 0..1"),
    ],
)
def test_other_stages(schedule, rank: int, stages: list[int], expected: str):
    with pytest.raises(ParameterError, match=re.escape(expected)):
        check_local_stages(schedule, rank, stages)
