"""Memory limits as users write them."""

import pytest

from fullbore.errors import ParameterError
from fullbore.ir import Placement
from fullbore.plan import parse_memory
from fullbore.sim import TableCosts, UniformCosts

PLACES = [Placement.linear(2), Placement.vee(2)]


def test_bytes_are_bytes():
    assert parse_memory("3e4").bytes(UniformCosts(F=1, I=1, W=1), PLACES) == 30_000


def test_a_multiple_counts_the_activations_of_the_rank_that_holds_most():
    costs = TableCosts(F=1, I=1, W=1, activation_bytes=[1, 2, 3, 9], static_bytes=[0, 100, 7, 0])
    assert parse_memory("0.5x").bytes(costs, PLACES) == 0.5 * 2 * (1 + 9) + 107
    assert parse_memory("1x").bytes(UniformCosts(F=1, I=1, W=1, activation_bytes=4), PLACES) == 8


@pytest.mark.parametrize("text", ["", "x", "0", "-1x", "1e400", "nan", "a lot"])
def test_nonsense(text: str):
    with pytest.raises(ParameterError, match=r"give bytes, or 0\.75x"):
        parse_memory(text)
