"""Batches are cut, and outputs joined, as torch.distributed.pipelining does."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.pipelining import microbatch as theirs
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils import _pytree as pytree

from fullbore.errors import ParameterError
from fullbore.pipelining import microbatch as ours
from fullbore.pipelining.microbatch import (
    TensorChunkSpec,
    _CustomReducer,
    _Replicate,
    merge_chunks,
    row_weights,
    split_args_kwargs_into_chunks,
    split_target_into_chunks,
    sum_reducer,
)

pytestmark = pytest.mark.torch

ROWS = torch.arange(16.0).reshape(8, 2)


def equal(one: Any, other: Any) -> bool:
    flat, structure = pytree.tree_flatten(one)
    others, structure_too = pytree.tree_flatten(other)
    return structure == structure_too and all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b
        for a, b in zip(flat, others, strict=True)
    )


def spec(dim: int) -> TensorChunkSpec:
    return TensorChunkSpec(dim)


CALLS: dict[str, tuple[Any, ...]] = {
    "tensors along dim 0": ((ROWS, ROWS + 1), {}, 4),
    "uneven": ((ROWS,), {"mask": ROWS[:, 0]}, 3),
    "plain values everywhere": ((ROWS, 3, "text", None), {"flag": True, "none": None}, 2),
    "nested": (((ROWS, [ROWS, 2]),), {"named": {"a": ROWS, "b": 1}}, 4),
    "other sizes": ((ROWS,), {"offsets": torch.arange(5)}, 2),
    "only keywords": ((), {"x": ROWS}, 4),
    "nothing": ((), {}, 4),
    "no keywords": ((ROWS,), None, 4),
    "fewer rows": ((ROWS[:3],), {}, 4),
    "fewer rows in a keyword": ((ROWS,), {"k": ROWS[:2]}, 4),
    "along dim 1": ((ROWS.T,), {"k": ROWS.T}, 4, (spec(1),), {"k": spec(1)}),
    "replicated": ((ROWS, ROWS), {}, 4, (spec(0), _Replicate), None),
    "replicated too": ((ROWS,), {"k": ROWS}, 4, (_Replicate(),), {"k": _Replicate()}),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_batches_are_cut_alike(call: tuple[Any, ...]):
    wanted = theirs.split_args_kwargs_into_chunks(*call)
    assert equal(split_args_kwargs_into_chunks(*call), wanted)


def test_a_tensor_without_dimensions_goes_to_all():
    args, kwargs = split_args_kwargs_into_chunks((ROWS,), {"scale": torch.tensor(2.0)}, 2)
    assert [named["scale"].item() for named in kwargs] == [2.0, 2.0]
    assert len(args) == 2


def test_a_keyword_without_a_spec_follows_the_rule():
    _, kwargs = split_args_kwargs_into_chunks(
        (), {"a": ROWS, "b": ROWS}, 2, None, {"a": _Replicate()}
    )
    assert [tuple(named["a"].shape) for named in kwargs] == [(8, 2)] * 2
    assert [tuple(named["b"].shape) for named in kwargs] == [(4, 2)] * 2


@pytest.mark.parametrize("batch", [6, 1])
def test_a_block_mask_is_cut_along_its_batch(batch: int):
    def causal(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (q >= kv) & (b != 4)

    mask = create_block_mask(causal, batch, 1, 128, 128, device="cpu")
    (found, _), (wanted, _) = (
        split(((mask),), None, 3)
        for split in (split_args_kwargs_into_chunks, theirs.split_args_kwargs_into_chunks)
    )
    zero = torch.tensor(0)
    for (one,), (other,) in zip(found, wanted, strict=True):
        assert torch.equal(one.kv_num_blocks, other.kv_num_blocks)
        assert torch.equal(one.kv_indices, other.kv_indices)
        rows = torch.arange(2)
        assert torch.equal(
            one.mask_mod(rows, zero, zero, zero), other.mask_mod(rows, zero, zero, zero)
        )


def test_the_gradient_of_a_cut_tensor_is_the_tensors():
    x = ROWS.clone().requires_grad_()
    args, _ = split_args_kwargs_into_chunks((x,), None, 4)
    torch.stack([(m + 1) * part.sum() for m, (part,) in enumerate(args)]).sum().backward()
    assert x.grad is not None
    assert x.grad[:, 0].tolist() == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (((ROWS,), {}, 2, (spec(2),), None), r"argument\[0\]: a tensor of shape \(8, 2\) has no"),
        (((3,), {}, 2, (spec(0),), None), "a tensor can be cut, a value of type int cannot"),
        (((ROWS,), {}, 2, (7,), None), "is not TensorChunkSpec"),
        (((ROWS,), {}, 2, (spec(0), spec(0)), None), "does not fit"),
        (((), {"a": ROWS}, 2, None, {"b": spec(0)}), "names 'b', which is not an argument"),
    ],
)
def test_specs_that_do_not_fit(call: tuple[Any, ...], message: str):
    with pytest.raises(ParameterError, match=message):
        split_args_kwargs_into_chunks(*call)


def test_targets_are_cut_along_dim_0():
    target = {"labels": ROWS, "name": "x"}
    parts = split_target_into_chunks(target, 3)
    assert [len(part["labels"]) for part in parts] == [3, 3, 2]
    with pytest.raises(ParameterError, match=r"target\['labels'\]: 9 microbatches need as many"):
        split_target_into_chunks(target, 9)


def test_what_may_hold_a_batch_is_not_replicated_unseen():
    array = ROWS.numpy()
    with pytest.raises(
        ParameterError, match=r"argument\[0\]: a ndarray is not cut, as only tensors"
    ):
        split_args_kwargs_into_chunks((array,), {}, 4)
    args, _ = split_args_kwargs_into_chunks((array,), {}, 4, (_Replicate(),))
    assert all(given is array for (given,) in args)
    for target in (array, {"labels": object()}):
        with pytest.raises(ParameterError, match="target"):
            split_target_into_chunks(target, 4)


def test_weights_are_the_share_of_rows():
    assert row_weights((ROWS,), {}, None, chunks=3) == (3 / 8, 3 / 8, 2 / 8)
    assert row_weights((), {}, ROWS, chunks=4) == (0.25,) * 4
    assert row_weights((3,), {"k": ROWS[:6]}, None, chunks=4) == (2 / 6, 2 / 6, 1 / 6, 1 / 6)
    assert row_weights((ROWS.T,), {}, None, chunks=2, specs=((spec(1),), None)) == (0.5, 0.5)
    assert row_weights((3,), {}, None, chunks=4) is None


MERGES: dict[str, tuple[Any, ...]] = {
    "tensors": ([ROWS, ROWS + 1], None),
    "pairs": ([(ROWS, ROWS), (ROWS, ROWS[:2])], None),
    "along dim 1": ([ROWS, ROWS], spec(1)),
    "a sum": ([torch.tensor(1.0), torch.tensor(2.0)], sum_reducer),
    "a reducer": ([(ROWS, 2), (ROWS, 3)], (spec(0), _CustomReducer(1, lambda a, b: a * b))),
    "equal values": ([(ROWS, "same"), (ROWS, "same")], (spec(0), "equal")),
}


@pytest.mark.parametrize("call", MERGES.values(), ids=MERGES.keys())
def test_outputs_are_joined_alike(call: tuple[Any, ...]):
    assert equal(merge_chunks(*call), theirs.merge_chunks(*call))


def test_what_torch_cannot_join():
    assert torch.equal(merge_chunks([torch.tensor(1), torch.tensor(2)], None), torch.tensor([1, 2]))
    assert merge_chunks([{"n": None}, {"n": None}], None) == {"n": None}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (([(ROWS, 1), (ROWS, 2)], (spec(0), None)), "outputs differ"),
        (([(ROWS, 1)], spec(0)), "has 2 leaves, output_merge_spec"),
        (([(ROWS, 1), (ROWS, 2)], None), "outputs differ"),
    ],
)
def test_outputs_that_cannot_be_joined(call: tuple[Any, ...], message: str):
    with pytest.raises(ParameterError, match=message):
        merge_chunks(*call)


def test_specs_are_torchs_own():
    for name in ("TensorChunkSpec", "_Replicate", "_CustomReducer", "_LossReducer", "sum_reducer"):
        assert getattr(ours, name) is getattr(theirs, name)
