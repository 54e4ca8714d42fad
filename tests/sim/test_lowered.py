"""Every family, lowered in every way: transfers change nothing at unit costs."""

import pytest

from fullbore.ir import Kind
from fullbore.passes import lower
from fullbore.schedules import FAMILIES, build
from fullbore.sim import UNIT_COSTS, Slot, unit_timeline

LOWERINGS = [{}, {"shard": True}, {"sink": True}, {"batch": True}]


def computation(slots: list[Slot]) -> list[tuple[str, float, float]]:
    return [(str(slot.action), slot.start, slot.end) for slot in slots]


@pytest.mark.parametrize("options", LOWERINGS, ids=lambda options: " ".join(options) or "plain")
@pytest.mark.parametrize("name", [*FAMILIES])
def test_a03_times_of_the_computation_stay(name: str, options: dict[str, bool]):
    for num_ranks, num_microbatches in [(1, 1), (2, 5), (4, 8), (5, 3)]:
        schedule = build(name, num_ranks=num_ranks, num_microbatches=num_microbatches)
        before, after = unit_timeline(schedule), unit_timeline(lower(schedule, **options))
        assert [*map(computation, after.work())] == [*map(computation, before.work())]
        assert after.makespan == before.makespan
        assert after.span == before.span


def test_a03_reductions_take_their_time():
    schedule = lower(build("1f1b", num_ranks=2, num_microbatches=2), shard=True)
    timeline = unit_timeline(schedule, costs={**UNIT_COSTS, Kind.REDUCE_GRAD: 3})
    assert timeline.makespan == 9 + 3


@pytest.mark.parametrize("name", [*FAMILIES])
def test_nothing_starts_later_than_it_must(name: str):
    """What a start waits for: its rank's own work, or an input that ends just then."""
    timeline = unit_timeline(build(name, num_ranks=4, num_microbatches=7))
    ends = {slot.end for work in timeline.work() for slot in work}
    for work in timeline.work():
        for before, slot in zip([None, *work], work, strict=False):
            earliest = 0 if before is None else before.end
            assert slot.start >= earliest
            assert slot.start == earliest or slot.start in ends
