"""Monarch's text of a schedule, from the file to the tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import (
    WIDTH,
    assert_gradients,
    assert_same,
    linear_tanh,
    local_pipeline,
    reference,
)

import fullbore as fb
from fullbore.formats import dumps, format_action, load, loads, parse_action, save
from fullbore.ir import KINDS, Action, Kind, Schedule, fuse

pytestmark = pytest.mark.torch

PLAIN = [k for k, info in KINDS.items() if not info.fused and k is not Kind.REDUCE_GRAD]
PAIRS = [Kind.SEND_F_RECV_B, Kind.SEND_B_RECV_F]
numbers = st.one_of(st.integers(0, 12), st.integers(0, 10**9 - 1))


def plain(kind: Kind) -> st.SearchStrategy[Action]:
    microbatches = numbers if KINDS[kind].has_microbatch else st.just(-1)
    return st.tuples(numbers, st.just(kind), microbatches).map(lambda found: Action(*found))


def pair(kind: Kind) -> st.SearchStrategy[Action]:
    halves = st.tuples(*map(plain, KINDS[kind].parts))
    return halves.map(lambda found: fuse(kind, *found))


actions = st.one_of(st.sampled_from(PLAIN).flatmap(plain), st.sampled_from(PAIRS).flatmap(pair))


@given(actions)
def test_an_action_of_any_numbers_is_read_as_it_was_written(action: Action) -> None:
    text = format_action(action, dialect="monarch")
    assert parse_action(text, dialect="monarch") == action
    assert not set(text) & set(" ,;()")


def batched(num_microbatches: int) -> Schedule:
    """Two ranks of two stages, with pairs of both kinds and reductions."""
    plan = fb.build(
        "interleaved_zero_bubble",
        num_ranks=2,
        num_microbatches=num_microbatches,
        stages_per_rank=2,
    )
    return fb.lower(plan, sink=True, batch=True, reduce_grad=True)


@pytest.mark.parametrize("num_microbatches", [4, 12])
def test_pairs_from_a_file_give_what_the_unpipelined_model_gives(
    tmp_path: Path, num_microbatches: int
) -> None:
    path = tmp_path / "pairs.csv"
    save(batched(num_microbatches), path, dialect="monarch")
    schedule = load(path, dialect="monarch")
    assert set(PAIRS) <= {action.kind for _, _, action in schedule.actions()}
    assert "_rs" in path.read_text("utf-8")
    modules = linear_tanh(schedule.num_stages)
    x, y = torch.randn(2, 2 * num_microbatches, WIDTH).unbind()
    wanted = reference(
        modules,
        [(part,) for part in x.split(2)],
        y.split(2),
        weights=[1 / num_microbatches] * num_microbatches,
    )

    out = local_pipeline(modules, schedule).step(x, target=y)

    assert_gradients(modules, wanted.gradients, schedule)
    assert out.losses is not None
    for found, loss in zip(out.losses, wanted.losses, strict=True):
        assert_same(found, loss, exact=True, what="loss")


def test_a_file_of_pairs_is_written_as_it_was_read() -> None:
    text = dumps(batched(12), format="csv", dialect="monarch")
    found = loads(text, format="csv", dialect="monarch")
    assert found == batched(12)
    assert dumps(found, format="csv", dialect="monarch") == text
