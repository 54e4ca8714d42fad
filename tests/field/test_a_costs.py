"""Cases A17 and A18: makespan and bubble at unit costs."""

import pytest

from fullbore.ir import Kind
from fullbore.schedules import build
from fullbore.sim import UNIT_COSTS, unit_timeline


@pytest.mark.parametrize(
    ("name", "makespan"),
    [
        ("interleaved_1f1b", 57),
        ("looped_bfs", 57),
        ("interleaved_zero_bubble", 51),
        ("zbv_zero_bubble", 51),
        ("dualpipev", 51),
    ],
)
def test_a17_makespan_of_two_stages_a_rank(name: str, makespan: int):
    schedule = build(name, num_ranks=4, num_microbatches=8, stages_per_rank=2)
    assert unit_timeline(schedule).makespan == makespan


@pytest.mark.parametrize("num_ranks", range(1, 9))
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_a18_bubble_of_one_stage_a_rank(name: str, num_ranks: int):
    bubble = (num_ranks - 1) * (UNIT_COSTS[Kind.F] + UNIT_COSTS[Kind.B])
    for num_microbatches in range(1, 17):
        schedule = build(name, num_ranks=num_ranks, num_microbatches=num_microbatches)
        assert unit_timeline(schedule).bubble == bubble
