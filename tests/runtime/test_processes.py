"""Ranks in processes of their own give what the unpipelined model gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.pool import Pool
from tests.reference import assert_same
from tests.runtime.ranks import Case, run_cases, run_over_gloo

from fullbore.runtime.launch import launch
from fullbore.verify import accumulates_in_order

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

SHARD = {"shard": True, "reduce_grad": True}
TWO = [
    Case("gpipe", 2, 3),
    Case("1f1b", 2, 4, lowering={"batch": True}),
    Case("1f1b", 2, 4, lengths=(6, 3, 6)),
    Case("looped_bfs", 2, 4, 2),
    Case("interleaved_1f1b", 2, 5, 3),
    Case("interleaved_zero_bubble", 2, 4, 2, kind="mixed"),
    Case("interleaved_zero_bubble", 2, 4, 2, lowering={"sink": True, "batch": True}),
    Case("zbv_zero_bubble", 2, 4, lowering={"sink": True}, lengths=(2, 700, 2)),
    Case("dualpipev", 2, 7, lowering=SHARD, kind="mixed"),
]
FOUR = [
    Case("1f1b", 4, 8),
    Case("interleaved_zero_bubble", 4, 8, 2, kind="mixed"),
    Case("zbv_zero_bubble", 4, 8),
    Case("dualpipev", 4, 8, lengths=(4, 1)),
]


def check(cases: list[Case], results: list[list[Any]]) -> None:
    """``results[rank][case]`` equal the unpipelined model."""
    for index, case in enumerate(cases):
        exact = accumulates_in_order(case.schedule())
        wanted, losses = case.wanted()
        seen: set[int] = set()
        for rank in range(case.num_ranks):
            found, own_losses = results[rank][index]
            seen |= set(found)
            for stage, gradients in found.items():
                for name, gradient in gradients.items():
                    # Gradients of several batches add up in another order than the reference's.
                    assert_same(
                        gradient,
                        wanted[stage][name],
                        exact=exact[stage] and len(case.lengths) == 1,
                        what=f"{case}: stage {stage} {name}",
                    )
            if case.schedule().placement.ranks[-1] == rank:
                for a, b in zip(own_losses, losses, strict=True):
                    for m, (x, y) in enumerate(zip(a, b, strict=True)):
                        assert_same(x, y, exact=True, what=f"{case}: loss {m}")
        assert seen == set(range(len(wanted)))


@pytest.mark.parametrize("cases", [TWO, FOUR], ids=["two ranks", "four ranks"])
def test_over_shared_memory(cases: list[Case]) -> None:
    num_ranks = cases[0].num_ranks
    check(cases, launch(run_cases, num_ranks, transport="shm", args=(cases,)))


@pytest.mark.parametrize("case", [*TWO, *FOUR], ids=str)
def test_over_gloo(pool: Callable[[int], Pool], case: Case) -> None:
    results = pool(case.num_ranks).run(run_over_gloo, case)
    check([case], [[result] for result in results])
