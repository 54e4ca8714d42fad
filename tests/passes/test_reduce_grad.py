import pytest
from tests.passes.samples import lines, schedule

from fullbore.errors import PassError
from fullbore.passes import InsertReduceGrad


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("0F0 0F1 0B1 0B0", "0F0 0F1 0B1 0B0 0REDUCE_GRAD"),
        ("0F0 1F0 1I0 0I0 0W0 1W0", "0F0 1F0 1I0 0I0 0W0 0REDUCE_GRAD 1W0 1REDUCE_GRAD"),
        (
            "0F0 1F0 1B0 (0F1;0B0)OVERLAP_F_B 1F1 1B1 0B1",
            "0F0 1F0 1B0 (0F1;0B0)OVERLAP_F_B 1F1 1B1 1REDUCE_GRAD 0B1 0REDUCE_GRAD",
        ),
        (
            "0F0 1F0 1B0 (1F1;0B0)OVERLAP_F_B",
            "0F0 1F0 1B0 1REDUCE_GRAD (1F1;0B0)OVERLAP_F_B 0REDUCE_GRAD",
        ),
        ("0F0 0F1", "0F0 0F1"),
    ],
)
def test_right_after_the_last_gradient(before: str, after: str):
    assert lines(InsertReduceGrad()(schedule(before))) == [after]


def test_only_once():
    once = InsertReduceGrad()(schedule("0F0 0B0"))
    with pytest.raises(PassError, match="insert_reduce_grad on schedule: it has REDUCE_GRAD"):
        InsertReduceGrad()(once)
