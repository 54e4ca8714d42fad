"""Cases A02, A15 and A22: grids with idle slots."""

import pytest

from fullbore.schedules import FAMILIES, build
from fullbore.sim import unit_timeline
from fullbore.view.grid import render_grid, render_html


@pytest.mark.parametrize("num_microbatches", [4, 8])
@pytest.mark.parametrize("name", [*FAMILIES])
def test_a02_idle_slots_show(name: str, num_microbatches: int):
    schedule = build(name, num_ranks=4, num_microbatches=num_microbatches)
    timeline = unit_timeline(schedule)
    rows = [line for line in render_grid(schedule, width=0).splitlines() if line.startswith("rank")]
    assert len(rows) == 4
    # Dots follow a rank's last action up to the end.
    assert [row.count("·") for row in rows] == [*timeline.idle]
    assert sum(timeline.idle) > 0


@pytest.mark.parametrize("name", ["1f1b", "zbv_zero_bubble"])
def test_a15_warm_up_starts_when_the_input_is_there(name: str):
    first, second, *_ = unit_timeline(build(name, num_ranks=4, num_microbatches=8)).ranks
    assert str(first[0].action) == "0F0"
    assert str(second[0].action) == "1F0"
    assert second[0].start == first[0].end == 1


@pytest.mark.parametrize("name", [*FAMILIES])
def test_a22_more_ranks_than_steps(name: str):
    schedule = build(name, num_ranks=16, num_microbatches=1)
    for lowered in (False, True):
        text = render_grid(schedule, lowered=lowered)
        assert all(f"rank {rank}" in text for rank in range(16))
    assert "rank 15" in render_html(schedule)
