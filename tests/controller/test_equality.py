"""Every family under the controller equals the unpipelined model, and the same run of ranks that
each have a program of their own, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.controller.cases import by_stage
from tests.pool import Pool
from tests.reference import assert_same, mse
from tests.runtime.ranks import Case, run_over_gloo

from fullbore.controller import PipelineParallelism
from fullbore.schedules import FAMILIES
from fullbore.verify import accumulates_in_order

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

MICROBATCHES = 5
TRAINING = [family for name, family in FAMILIES.items() if name != "forward_only"]
CASES = [
    Case(family.name, num_ranks, MICROBATCHES, stages_per_rank)
    for family in TRAINING
    for num_ranks in (2, 4)
    for stages_per_rank in (
        (family.default_stages_per_rank,) if family.fixed_stages_per_rank else (1, 2, 3)
    )
]
# Every further order is the same actors with other programs.
ACTED = {"gpipe", "1f1b", "looped_bfs", "interleaved_1f1b", "interleaved_zero_bubble"} | {
    "zbv_zero_bubble",
    "dualpipev",
    "dora_dfs",
}
ON_ACTORS = [
    case
    for case in CASES
    if case.name in ACTED and case.stages_per_rank == FAMILIES[case.name].default_stages_per_rank
]


def name_of(case: Case) -> str:
    return f"{case.name}, {case.num_ranks} ranks of {case.stages_per_rank}"


def assert_equal(pp: PipelineParallelism, case: Case, spmd: list[Any]) -> None:
    """One batch, run by ``pp``, gives what the unpipelined model gives and what ``spmd`` did."""
    (x, y), *_ = case.batches()
    reference, ((*wanted_losses,),) = case.wanted()
    with pp:
        loss, found = pp.run(x, y), pp.gradients()
        assert pp.last is not None
        losses, exact = pp.last.losses, accumulates_in_order(pp.schedule)
    assert losses is not None
    _, (spmd_losses,) = spmd[pp.schedule.placement.ranks[-1]]
    for m, wanted in enumerate(wanted_losses):
        assert_same(losses[m], wanted, exact=True, what=f"loss {m}")
        assert_same(losses[m], spmd_losses[m], exact=True, what=f"loss {m}, of the ranks' own")
    assert_same(loss, torch.stack(wanted_losses).mean(), exact=False, what="loss")
    parts = {stage: part for gradients, _ in spmd for stage, part in gradients.items()}
    assert sorted(parts) == list(range(len(reference)))
    assert found.keys() == {by_stage(s, name) for s, part in parts.items() for name in part}
    for stage, part in parts.items():
        for name, gradient in part.items():
            own, what = found[by_stage(stage, name)], f"stage {stage} {name}"
            assert_same(own, gradient, exact=True, what=f"{what}, of the ranks' own")
            assert_same(own, reference[stage][name], exact=exact[stage], what=what)


def controlled(meshes: Any, case: Case, engine: str) -> PipelineParallelism:
    return PipelineParallelism(
        meshes,
        case.modules(),
        schedule=case.name,
        batch_size=2 * MICROBATCHES,
        microbatch_size=2,
        loss_fn=mse,
        engine=engine,
        names=by_stage,
    )


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_in_one_process(pool: Callable[[int], Pool], case: Case):
    spmd = pool(case.num_ranks).run(run_over_gloo, case)
    assert_equal(controlled(case.num_ranks, case, "local"), case, spmd)


@pytest.mark.monarch
@pytest.mark.parametrize("case", ON_ACTORS, ids=name_of)
def test_on_actors(procs: Any, pool: Callable[[int], Pool], case: Case):
    spmd = pool(case.num_ranks).run(run_over_gloo, case)
    mesh = procs.slice(ranks=slice(0, case.num_ranks))
    assert_equal(controlled(mesh, case, "monarch"), case, spmd)
