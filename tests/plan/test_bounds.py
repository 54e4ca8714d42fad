"""Bounds: known values, and that nothing beats them."""

from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.passes.samples import random_order
from tests.plan.papers import MIDDLE, SMALL, TABLE_8, UNIT, costs, fused, instance, rate

from fullbore.errors import ParameterError
from fullbore.ir import Placement
from fullbore.plan import bounds, make_instance
from fullbore.schedules import FAMILIES, build
from fullbore.sim import Costs, TableCosts, UniformCosts, measure, simulate

VEE, LOOP = Placement.vee, Placement.loop
RATES = [  # placement, M, memory, costs, the makespan's bubble rate at the bound
    (VEE(8), 24, 1, costs(MIDDLE), 0.0567),
    (VEE(8), 24, 0.625, costs(MIDDLE), 0.1431),
    (VEE(8), 24, 0.5, costs(MIDDLE), 0.1727),
    (VEE(4), 8, 1, costs(MIDDLE), 0.0718),
    (VEE(4), 8, 0.75, costs(MIDDLE), 0.1453),
    (VEE(4), 8, 0.5, costs(MIDDLE), 0.2278),
    (VEE(4), 12, 0.5, costs(MIDDLE), 0.1644),
    (VEE(4), 8, 0.5, costs(UNIT, held=1, kept=1), 0.1864),
    (VEE(16), 48, 1, costs(TABLE_8[16]), 0.0724),
    (LOOP(4, 1), 8, 1, costs(MIDDLE), 0.1639),
    (LOOP(4, 1), 8, 2, costs(MIDDLE), 0.1254),
    (LOOP(8, 1), 24, 1, costs(MIDDLE), 0.1323),
    (LOOP(4, 2), 8, 1, costs(MIDDLE), 0.0725),
    (LOOP(8, 2), 24, 1, costs(MIDDLE), 0.0570),
    (LOOP(8, 2), 64, 0.75, costs(MIDDLE), 0.0451),
    (LOOP(8, 4), 24, 1, costs(MIDDLE), 0.0363),
    (LOOP(16, 4), 64, 1, costs(MIDDLE), 0.0291),
    (LOOP(16, 4), 48, 1, costs(TABLE_8[16]), 0.0595),
    (LOOP(24, 4), 72, 1, costs(TABLE_8[24]), 0.0583),
    (LOOP(32, 4), 96, 1, costs(TABLE_8[32]), 0.0539),
    (LOOP(4, 1), 8, 1, fused(SMALL), 0.2830),
    (LOOP(4, 2), 8, 1.375, fused(SMALL), 0.1648),
    (LOOP(4, 2), 8, 1.375, fused(MIDDLE), 0.1614),
]


@pytest.mark.parametrize(
    ("placement", "microbatches", "memory", "model", "expected"),
    RATES,
    ids=lambda value: f"{value.shape}{value.num_ranks}" if isinstance(value, Placement) else None,
)
def test_rates(
    placement: Placement, microbatches: int, memory: float, model: UniformCosts, expected: float
):
    of = instance(placement, microbatches, memory, model)
    assert rate(of, bounds(of).makespan) == pytest.approx(expected, abs=5.1e-5)


@pytest.mark.parametrize("num_ranks", [2, 3, 5, 8])
def test_one_stage_a_rank_at_the_memory_of_1f1b_is_zb_h1(num_ranks: int):
    f, i, w, c = 10.0, 9.0, 6.0, 0.5
    of = instance(LOOP(num_ranks, 1), 3 * num_ranks, 1, costs((f, i, w, c)))
    found = bounds(of)
    work = 3 * num_ranks * (f + i + w)
    assert found.span == pytest.approx(work + (num_ranks - 1) * (f + i - w + 4 * c))
    assert found.makespan == pytest.approx(found.span)


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_a_vee_at_unit_cost_is_the_published_bound(num_ranks: int):
    """6n + 6p - 3k - 1 for k chunks of memory (arXiv 2405.15362, figure 13), up to where
    the last rank's late start counts for more than its tail."""
    n = 3 * num_ranks
    for k in range(2, 3 * num_ranks // 2 + 1):
        of = instance(VEE(num_ranks), n, k / 2 / num_ranks, costs(UNIT, held=2, kept=2))
        window = bounds(of).makespan_by["window"]
        assert window == pytest.approx(6 * n + 6 * num_ranks - 3 * k - 1)


def test_half_the_memory_of_1f1b_bounds_the_throughput():
    """Of one stage a rank: a period of at least (p (F + I) + 2 (p-1) c) / K."""
    f, i, w, c = MIDDLE
    of = instance(LOOP(8, 1), 400, 0.5, costs(MIDDLE))
    assert bounds(of).makespan > 400 * max(f + i + w, (8 * (f + i) + 14 * c) / 4)


def held(schedule, model: Costs) -> list[float]:
    metrics = measure(schedule, simulate(schedule, model), model)
    return [peak.bytes for peak in metrics.peak]


def never_beaten(schedule, model: Costs) -> None:
    timeline = simulate(schedule, model)
    found = bounds(
        make_instance(
            schedule.placement,
            schedule.num_microbatches,
            costs=model,
            memory=held(schedule, model),
        )
    )
    assert found.makespan <= timeline.makespan * (1 + 1e-9)
    assert found.span <= timeline.span * (1 + 1e-9)


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"forward_only"}))
def test_no_family_beats_them(name: str):
    for num_ranks, microbatches in [(1, 2), (2, 5), (4, 9)]:
        schedule = build(name, num_ranks=num_ranks, num_microbatches=microbatches)
        for times in (SMALL, MIDDLE, UNIT, (1.0, 3.0, 0.0, 2.0)):
            never_beaten(schedule, costs(times))


@st.composite
def tables(draw: st.DrawFn, num_stages: int) -> TableCosts:
    def row(*, least: int = 0) -> list[int]:
        return draw(st.lists(st.integers(least, 9), min_size=num_stages, max_size=num_stages))

    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options |= {"message_bytes": row(), "bandwidth": draw(st.integers(1, 9))}
    if draw(st.booleans()):
        options |= {"B": row(), "overlap": draw(st.integers(0, 9)), "send": row()}
    if draw(st.booleans()):
        options |= {"recompute": draw(st.sets(st.integers(0, num_stages - 1)))}
    return TableCosts(
        F=row(least=1),
        I=row(),
        W=row(),
        latency=draw(st.integers(0, 5)),
        activation_bytes=row(),
        kept_bytes=row(),
        static_bytes=row(),
        **options,
    )


@given(st.data(), st.integers(1, 6), st.integers(1, 6), st.integers(0, 999_999))
def test_no_order_beats_them(data: st.DataObject, stages: int, microbatches: int, seed: int):
    random = Random(seed)
    drawn = [random.randrange(3) for _ in range(stages)]
    names = sorted(set(drawn))
    placement = Placement(tuple(names.index(rank) for rank in drawn))
    schedule = random_order(placement, microbatches, random, forward_only=False)
    never_beaten(schedule, data.draw(tables(stages)))


def test_memory_that_cannot_hold_one_microbatch_is_refused():
    model = TableCosts(F=1, I=1, W=1, activation_bytes=4, static_bytes=10)
    make_instance(Placement.vee(2), 3, costs=model, memory=28)
    with pytest.raises(ParameterError, match=r"rank 0 needs 28 at least, .* got 27"):
        make_instance(Placement.vee(2), 3, costs=model, memory=27)
    with pytest.raises(ParameterError, match="one limit a rank is needed, 2; got 1"):
        make_instance(Placement.vee(2), 3, costs=model, memory=[28])
