"""Building blocks, repeated: what they hold, and what moves."""

from itertools import pairwise

import pytest

from fullbore.ir import Kind, Placement, Schedule
from fullbore.schedules import build
from fullbore.schedules.block import repeat
from fullbore.sim import unit_timeline


def most_held(schedule: Schedule) -> int:
    """The most (stage, microbatch) pairs between F and W on any rank."""
    most = 0
    for program in schedule.programs:
        held = 0
        for action in program:
            held += {Kind.F: 1, Kind.W: -1}.get(action.kind, 0)
            most = max(most, held)
    return most


@pytest.mark.parametrize(("name", "add", "part"), [("v_half", 2, 2), ("v_min", 4, 3)])
def test_what_a_rank_holds(name: str, add: int, part: int):
    for num_ranks in range(1, 17):
        limit = 2 * ((num_ranks + add) // part)
        for microbatches in (1, 2, 5, 3 * num_ranks):
            schedule = build(name, num_ranks=num_ranks, num_microbatches=microbatches)
            assert most_held(schedule) <= min(limit, 2 * microbatches)
        assert most_held(schedule) == limit


def test_free_slots_at_the_start_take_forwards_as_far_as_there_is_memory():
    """The block of V-Half on four ranks: with more memory rank 0 runs one more of them ahead."""
    starts = [(2 * r, 10 - r, 14 + 2 * r, 25 - r) for r in range(4)]
    found = [repeat(Placement.vee(4), 8, starts, limit=limit) for limit in (3, 4, 5)]
    starts_of_rank_0 = [" ".join(map(str, schedule.programs[0][:8])) for schedule in found]
    assert starts_of_rank_0[0] == "0F0 0F1 0F2 0F3 0F4 7F0 7I0 7W0"
    assert starts_of_rank_0[1] == "0F0 0F1 0F2 0F3 0F4 0F5 7F0 7I0"
    assert [unit_timeline(schedule).makespan for schedule in found] == [53, 51, 51]
    assert all(most_held(schedule) <= 2 * n for n, schedule in enumerate(found, 3))
    assert found[0].programs == build("v_half", num_ranks=4, num_microbatches=8).programs


@pytest.mark.parametrize("name", ["v_half", "v_min"])
def test_a_microbatch_more_takes_six_slots_more(name: str):
    for num_ranks in (2, 3, 4, 8):
        lengths = [
            unit_timeline(build(name, num_ranks=num_ranks, num_microbatches=m)).makespan
            for m in range(3 * num_ranks, 3 * num_ranks + 4)
        ]
        assert {after - before for before, after in pairwise(lengths)} == {6}
