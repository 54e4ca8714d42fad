"""The pieces that families are put together from."""

import pytest

from fullbore.ir import Action, Kind
from fullbore.schedules.pattern import play
from fullbore.schedules.rounds import in_rounds, round_sizes, weave


def text(actions: list[Action]) -> str:
    return " ".join(map(str, actions))


@pytest.mark.parametrize(
    ("microbatches", "ranks", "sizes"),
    [
        (8, 4, [4, 4]),
        (10, 4, [5, 5]),
        (9, 4, [5, 4]),
        (17, 2, [3, 2, 2, 2, 2, 2, 2, 2]),
        (3, 4, [3]),
        (2, 1, [1, 1]),
    ],
)
def test_round_sizes(microbatches: int, ranks: int, sizes: list[int]):
    assert round_sizes(microbatches, ranks) == sizes


def test_in_rounds():
    assert text(in_rounds(Kind.I, (5, 2), [2, 1])) == "5I0 5I1 2I0 2I1 5I2 2I2"


def test_weave():
    one, two, three = (Action(0, Kind.F, m) for m in range(3))
    assert weave([one], [two, three]) == [one, two, three]
    assert weave([None, one], [two, three]) == [two, one, three]


def test_play_counts_each_kind_of_each_stage():
    assert text(play("F0 F1 F0 I1 W1 F1", (2, 5), range(9))) == "2F0 5F0 2F1 5I0 5W0 5F1"


def test_a_full_backward_counts_as_both_halves():
    assert text(play("B0 I0 W0 B0", (0,), range(9))) == "0B0 0I1 0W1 0B2"


def test_an_overlap_loses_the_parts_that_are_left_out():
    pattern = "F0+B1 F0+B1 F0 F0+B1"
    assert text(play(pattern, (0, 3), range(4))) == (
        "(0F0;3B0)OVERLAP_F_B (0F1;3B1)OVERLAP_F_B 0F2 (0F3;3B2)OVERLAP_F_B"
    )
    assert text(play(pattern, (0, 3), range(3))) == (
        "(0F0;3B0)OVERLAP_F_B (0F1;3B1)OVERLAP_F_B 0F2 3B2"
    )
    assert text(play(pattern, (0, 3), range(2, 4))) == "0F0 (0F1;3B0)OVERLAP_F_B"
