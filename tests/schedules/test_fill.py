"""Where weight gradients go, and that the families that place them keep to their memory."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullbore.formats import parse_action
from fullbore.ir import Placement
from fullbore.schedules import build
from fullbore.schedules.costs import unit_costs
from fullbore.schedules.fill import Filled, fill
from fullbore.sim import TableCosts, measure, simulate
from fullbore.verify import verify

TWO = Placement.linear(2)
ORDER = ("0F0 0F1 0I0 0F2 0I1 0I2", "1F0 1I0 1F1 1I1 1F2 1I2")


def filled(*rows: str, **costs: Any) -> Filled | None:
    orders = [[parse_action(text) for text in row.split()] for row in rows]
    return fill(orders, TWO, 3, costs=replace(unit_costs(TWO), **costs))


@pytest.mark.parametrize(
    ("costs", "rows"),
    [
        # Rank 0 waits for its second I. Half as long would not do, but it is idle longest.
        (
            {"up": (0.5, 0.0)},
            ("0F0 0F1 0I0 0F2 0I1 0W0 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2"),
        ),
        # Rank 1 waits as well, for its third F.
        (
            {"up": (0.5, 0.0), "down": (0.5, 0.0)},
            ("0F0 0F1 0I0 0F2 0I1 0W0 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"),
        ),
        # Memory for two microbatches: a weight gradient goes before the third forward.
        (
            {"capacity": (2.0, 2.0)},
            ("0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"),
        ),
        (
            {"capacity": (2.0, 1.0)},
            ("0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2", "1F0 1I0 1W0 1F1 1I1 1W1 1F2 1I2 1W2"),
        ),
    ],
)
def test_where_weight_gradients_go(costs: dict[str, Any], rows: tuple[str, ...]):
    found = filled(*ORDER, **costs)
    assert found is not None
    assert tuple(" ".join(map(str, program)) for program in found.schedule.programs) == rows


def test_those_that_are_there_stay():
    found = filled("0F0 0I0 0F1 0I1 0W1 0F2 0I2", "1F0 1I0 1F1 1I1 1F2 1I2")
    assert found is not None
    text = " ".join(map(str, found.schedule.programs[0]))
    assert "0I1 0W1 0F2" in text
    assert "0W0" in text
    assert text.count("W") == 3


def test_an_order_that_needs_more_memory_than_there_is():
    assert filled(*ORDER, capacity=(1.0, 3.0)) is None


def test_what_it_takes_is_what_the_simulator_says():
    found = filled(*ORDER, up=(0.5, 0.0), down=(0.25, 0.0), W=(2.0, 0.5))
    assert found is not None
    costs = TableCosts(F=1, I=1, W=[2.0, 0.5], latency={(0, 1): 0.25, (1, 0): 0.5})
    timeline = simulate(found.schedule, costs)
    assert (found.span, found.makespan) == (timeline.span, timeline.makespan)


@given(st.data(), st.sampled_from(["zb", "zbv_greedy"]), st.integers(1, 5), st.integers(1, 9))
def test_any_costs_and_memory_give_a_schedule_that_fits(
    data: st.DataObject, name: str, num_ranks: int, microbatches: int
):
    num_stages = num_ranks * (1 if name == "zb" else 2)

    def row(least: int) -> list[int]:
        return data.draw(st.lists(st.integers(least, 9), min_size=num_stages, max_size=num_stages))

    full, kept = row(1), row(0)
    again = data.draw(st.sets(st.integers(0, num_stages - 1)))
    costs = TableCosts(
        F=row(0),
        I=row(0),
        W=row(0),
        latency=data.draw(st.integers(0, 5)),
        activation_bytes=full,
        kept_bytes=kept,
        recompute=again,
    )
    placement = build(name, num_ranks=num_ranks, num_microbatches=1).placement
    light = [0 if s in again else full[s] for s in range(num_stages)]
    # One microbatch of each stage, and what one of them may hold more while it runs.
    least = max(
        sum(light[s] for s in stages) + max(max(full[s], kept[s]) - light[s] for s in stages)
        for stages in map(placement.stages_of, range(num_ranks))
    )
    memory = least + data.draw(st.integers(0, 40))
    schedule = build(
        name, num_ranks=num_ranks, num_microbatches=microbatches, costs=costs, memory=memory
    )
    assert not [finding for finding in verify(schedule) if finding.severity == "error"]
    found = measure(schedule, simulate(schedule, costs), costs)
    assert max(peak.bytes for peak in found.peak) <= memory


@pytest.mark.parametrize("name", ["zb", "zbv_greedy"])
def test_any_limit_gives_a_schedule_that_fits(name: str):
    for num_ranks in range(1, 6):
        for microbatches in (1, 2, 5, 12):
            for limit in range(1, 2 * num_ranks + 2):
                schedule = build(
                    name, num_ranks=num_ranks, num_microbatches=microbatches, limit=limit
                )
                assert not [finding for finding in verify(schedule) if finding.severity == "error"]
                costs = TableCosts(F=1, I=1, W=1, activation_bytes=1)
                found = measure(schedule, simulate(schedule, costs), costs)
                most = max(peak.bytes for peak in found.peak)
                assert most <= limit * schedule.num_stages / num_ranks


def test_more_memory_makes_the_span_no_longer():
    """With what a transformer holds: less than half from I to W."""
    costs = TableCosts(F=3, I=3, W=2, latency=0.2, activation_bytes=30, kept_bytes=13)
    spans = [
        simulate(
            build("zb", num_ranks=4, num_microbatches=16, costs=costs, limit=limit), costs
        ).span
        for limit in range(1, 9)
    ]
    assert spans == sorted(spans, reverse=True)
    assert spans[-1] < 1.01 * 16 * 8
