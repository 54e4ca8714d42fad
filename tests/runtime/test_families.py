"""Every family on the local engine, at many sizes, equals the unpipelined model."""

import pytest
import torch
from tests.reference import (
    WIDTH,
    assert_gradients,
    assert_same,
    linear_tanh,
    local_pipeline,
    reference,
)

import fullbore as fb
from fullbore.runtime import Pipeline

pytestmark = pytest.mark.torch

RANKS = (1, 2, 4)
MICROBATCHES = (1, 2, 3, 4, 7, 8)
SINGLE = ("gpipe", "1f1b", "zb_h1", "zb_h2", "zb")
LOOPED = ("looped_bfs", "interleaved_1f1b", "interleaved_zero_bubble", "gis", "dora", "dora_dfs")
VEE = ("zbv_zero_bubble", "dualpipev", "zbv_greedy", "v_half", "v_min")
SHAPES = [
    *((name, p, 1) for name in SINGLE for p in RANKS),
    *((name, p, v) for name in LOOPED for p in RANKS for v in (1, 2, 3)),
    *((name, p, 2) for name in VEE for p in RANKS),
]


def build(name: str, num_ranks: int, stages_per_rank: int, num_microbatches: int) -> fb.Schedule:
    return fb.build(
        name,
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        stages_per_rank=stages_per_rank,
    )


@pytest.mark.parametrize("num_microbatches", MICROBATCHES)
@pytest.mark.parametrize(("name", "num_ranks", "stages_per_rank"), SHAPES)
def test_gradients_losses_and_outputs_equal_the_unpipelined_model(
    name: str, num_ranks: int, stages_per_rank: int, num_microbatches: int
) -> None:
    schedule = build(name, num_ranks, stages_per_rank, num_microbatches)
    modules = linear_tanh(schedule.num_stages)
    rows = 2 * num_microbatches
    x, y = torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)
    wanted = reference(
        modules,
        [(part,) for part in x.tensor_split(num_microbatches)],
        y.tensor_split(num_microbatches),
        weights=[1 / num_microbatches] * num_microbatches,
    )

    out = local_pipeline(modules, schedule).step(x, target=y, return_outputs=True)

    assert_gradients(modules, wanted.gradients, schedule)
    assert out.losses is not None
    assert out.outputs is not None
    for m in range(num_microbatches):
        assert_same(out.losses[m], wanted.losses[m], exact=True, what=f"loss {m}")
        assert_same(out.outputs[m], wanted.outputs[m], exact=True, what=f"output {m}")


@pytest.mark.parametrize(("name", "num_ranks", "stages_per_rank"), SHAPES)
def test_everything_held_for_a_step_is_released(
    name: str, num_ranks: int, stages_per_rank: int
) -> None:
    schedule = build(name, num_ranks, stages_per_rank, 4)
    modules = linear_tanh(schedule.num_stages)
    pipe = local_pipeline(modules, schedule)
    x = torch.randn(8, WIDTH)
    pipe.step(x, target=x)
    assert list(held(pipe)) == []


def held(pipe: Pipeline) -> list[object]:
    """What the pipeline's worker still keeps for microbatches."""
    units = pipe._programs[True].worker._units.values()
    return [
        value
        for unit in units
        for field in vars(unit).values()
        if isinstance(field, dict)
        for value in field.values()
    ]
