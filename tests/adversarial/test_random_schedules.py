"""Any legal order on any placement, lowered in any way, gives what the plain loop gives."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from tests.adversarial.budget import budget
from tests.adversarial.compare import assert_right
from tests.adversarial.draws import known, lowered, overlapped, transformed

from fullbore.formats import dumps
from fullbore.verify import check

pytestmark = pytest.mark.torch


@budget(0.5)
@given(st.randoms(use_true_random=True))
def test_passes_keep_it_so(random: Random) -> None:
    plan = transformed(random, random.choice((known, overlapped))(random))
    note(dumps(plan, format="txt"))
    assert_right(plan)


@budget()
@given(st.randoms(use_true_random=True))
def test_it_is_valid_and_equals_the_plain_loop(random: Random) -> None:
    plan = lowered(random, overlapped(random))
    note(dumps(plan, format="txt"))
    check(plan, model="rendezvous")
    assert_right(plan, branches=random.randrange(2) == 0, more_rows=random.randrange(3))
