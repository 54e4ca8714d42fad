"""A valid schedule after one change is rejected by the verifier, or still right."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import event, given, note
from hypothesis import strategies as st
from tests.adversarial.budget import budget
from tests.adversarial.compare import assert_right
from tests.adversarial.draws import (
    CHANGES,
    is_valid,
    lowered,
    overlapped,
    swap_neighbours,
    valid,
)

from fullbore.errors import InvalidSchedule, ParameterError
from fullbore.verify import check

pytestmark = pytest.mark.torch


@budget()
@given(st.randoms(use_true_random=True), st.sampled_from(CHANGES))
def test_one_change_is_rejected_or_right(random: Random, change) -> None:
    plan = valid(random)
    try:
        mutant = change(random, plan)
    except ParameterError:
        event(f"{change.__name__}: no schedule at all")
        return
    note(f"{mutant.placement}, {mutant.num_microbatches} microbatches, {mutant.form}")
    note("\n".join(" ".join(map(str, program)) for program in mutant.programs))
    if not is_valid(mutant):
        event(f"{change.__name__}: rejected")
        with pytest.raises(InvalidSchedule):
            check(mutant)
        return
    event(f"{change.__name__}: accepted")
    assert_right(mutant)


@budget(0.5)
@given(st.randoms(use_true_random=True))
def test_a_walk_through_what_the_verifier_accepts_stays_right(random: Random) -> None:
    """Far from what any family or pass would make: every swap that leaves it valid is kept."""
    plan = lowered(random, overlapped(random))
    for _ in range(24):
        mutant = swap_neighbours(random, plan)
        plan = mutant if is_valid(mutant) else plan
    note("\n".join(" ".join(map(str, program)) for program in plan.programs))
    assert_right(plan)
