"""Which stages add up their gradients in the order of the microbatches."""

import pytest
from tests.symbolic import run
from tests.verify.support import schedule

from fullbore.ir import Schedule
from fullbore.schedules import FAMILIES, build
from fullbore.verify import accumulates_in_order, verify

ASCENDING = {"1f1b", "interleaved_1f1b", "interleaved_zero_bubble", "zbv_zero_bubble", "dualpipev"}


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        ("0F0 0F1 0B0 0B1", True),
        ("0F0 0F1 0B1 0B0", False),
        ("0F0 0F1 0I0 0I1 0W0 0W1", True),
        ("0F0 0F1 0I0 0I1 0W1 0W0", False),
        ("0F0 0F1 0I1 0I0 0W0 0W1", False),
        # A full backward that overtakes a pending W, although B, I and W ascend each by itself.
        ("0F0 0F1 0I0 0B1 0W0", False),
        ("0F0 0F1 0B0 0I1 0W1", True),
        ("0F0 0F1 0I1 0B0 0W1", False),
    ],
)
def test_orders(orders: str, expected: bool):
    found = schedule(orders, microbatches=2)
    assert accumulates_in_order(found) == (expected,)
    assert [each.rule for each in verify(found)] == ["accumulation-order"] * (not expected)


def test_each_stage_by_itself():
    mixed = schedule("0F0 0F1 0B1 0B0", "1F0 1F1 1B0 1B1", ranks=(0, 1), microbatches=2)
    assert accumulates_in_order(mixed) == (False, True)
    [note] = verify(mixed)
    assert (note.rank, note.message) == (0, "stage 0 runs B in the order 1, 0")


def test_the_note_says_which_actions():
    [note] = verify(schedule("0F0 0F1 0I0 0B1 0W0", microbatches=2))
    assert note.message == "stage 0 runs B and W in the order 1, 0"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("num_ranks", "num_microbatches"), [(2, 4), (2, 5), (4, 8)])
def test_families(family: str, num_ranks: int, num_microbatches: int):
    made = build(family, num_ranks=num_ranks, num_microbatches=num_microbatches)
    assert all(accumulates_in_order(made)) == orders_ascend(made)
    if family in ASCENDING:
        assert all(accumulates_in_order(made))


def orders_ascend(schedule: Schedule) -> bool:
    return all(list(order) == sorted(order) for order in run(schedule).accumulated)
