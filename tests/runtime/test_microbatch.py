"""How a batch is cut, and how outputs are put together."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fullbore.errors import ParameterError
from fullbore.runtime import Replicate, Split, merge
from fullbore.runtime.microbatch import Batch, Specs, presplit_batch, split_batch

pytestmark = pytest.mark.torch


class Offsets(NamedTuple):
    starts: Tensor
    longest: int


def cut(*args: object, count: int = 4, target: object = None, **kwargs: object) -> Batch:
    return split_batch(args, kwargs, target=target, num_microbatches=count)


def rows(parts: object) -> list[int]:
    return [part.shape[0] for part in parts]  # type: ignore[attr-defined]


def test_sizes_differ_by_one_row_at_most_and_weights_are_the_share_of_rows() -> None:
    x = torch.arange(7.0)
    batch = cut(x, target=x)
    assert rows(a for (a,) in batch.args) == [2, 2, 2, 1]
    assert batch.targets is not None
    assert torch.equal(torch.cat(list(batch.targets)), x)
    assert batch.weights == (2 / 7, 2 / 7, 2 / 7, 1 / 7)


def test_nested_arguments_are_cut_leaf_by_leaf_and_plain_values_go_to_all() -> None:
    x = torch.arange(8.0)
    batch = cut({"x": x, "flag": True}, [x, None, "text"])
    assert [a["flag"] for a, _ in batch.args] == [True] * 4
    assert rows(a["x"] for a, _ in batch.args) == [2] * 4
    assert [b[1:] for _, b in batch.args] == [[None, "text"]] * 4


def test_targets_may_be_tuples_or_dicts() -> None:
    y = torch.arange(8.0)
    batch = cut(y, target=(y, {"z": y}))
    assert batch.targets is not None
    assert rows(t[0] for t in batch.targets) == rows(t[1]["z"] for t in batch.targets) == [2] * 4


@pytest.mark.parametrize(
    "value",
    [
        Offsets(torch.tensor([0, 3, 5, 7, 8]), 3),
        torch.arange(4.0),
        torch.tensor(2.0),
        None,
        "text",
    ],
    ids=["offsets", "vector of M", "0-dim", "None", "str"],
)
def test_keyword_values_of_another_size_are_replicated(value: object) -> None:
    batch = cut(torch.arange(8.0), option=value)
    assert all(kwargs["option"] is value or kwargs["option"] == value for kwargs in batch.kwargs)


def test_keyword_tensors_of_the_batch_size_are_cut() -> None:
    batch = cut(torch.arange(8.0), mask=torch.ones(8, 3))
    assert [tuple(k["mask"].shape) for k in batch.kwargs] == [(2, 3)] * 4


def test_a_spec_says_which_dimension_counts_the_rows() -> None:
    x, y = torch.randn(3, 8), torch.randn(8)
    batch = split_batch(
        (x,), {}, target=y, num_microbatches=4, specs=Specs(args=(Split(1),), target=None)
    )
    assert [tuple(a.shape) for (a,) in batch.args] == [(3, 2)] * 4
    assert batch.targets is not None
    assert rows(batch.targets) == [2] * 4


def test_a_spec_overrides_the_rule_for_arguments_keywords_and_targets() -> None:
    x, table = torch.randn(8, 2), torch.randn(5)
    specs = Specs(
        args=(Split(0), Replicate()), kwargs={"mask": Replicate()}, target={"y": Split(1)}
    )
    batch = split_batch(
        (x, table),
        {"mask": torch.ones(8)},
        target={"y": torch.randn(2, 8)},
        num_microbatches=2,
        specs=specs,
    )
    assert all(a[1] is table for a in batch.args)
    assert [tuple(k["mask"].shape) for k in batch.kwargs] == [(8,)] * 2
    assert batch.targets is not None
    assert [tuple(t["y"].shape) for t in batch.targets] == [(2, 4)] * 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cut(torch.ones(8), torch.ones(5)), r"argument\[1\]: 5 rows.*batch has 8"),
        (lambda: cut(torch.ones(8), torch.tensor(1.0)), r"argument\[1\].*Replicate"),
        (lambda: cut(torch.ones(8), target=torch.ones(2)), r"target: 2 rows"),
        (lambda: cut(torch.ones(3)), "4 microbatches need at least as many rows"),
        (lambda: cut(mask=torch.ones(3)), "'mask': the batch size is unknown here"),
        (
            lambda: split_batch(
                (torch.ones(8),), {}, num_microbatches=2, specs=Specs(kwargs={"m": Split(0)})
            ),
            "kwargs spec names 'm'",
        ),
        (
            lambda: split_batch(
                (torch.ones(8),), {}, num_microbatches=2, specs=Specs(args=(Split(0), Split(0)))
            ),
            "doesn't have the value's structure",
        ),
        (
            lambda: split_batch(
                (torch.ones(8),), {}, num_microbatches=2, specs=Specs(args=(Split(3),))
            ),
            "cannot be split along dim 3",
        ),
        (
            lambda: split_batch((torch.ones(8),), {}, num_microbatches=2, specs=Specs(args=("x",))),
            "'x' is not Split",
        ),
        (
            lambda: presplit_batch([(1,)], None, targets=None, num_microbatches=2),
            "arg_mbs must hold 2 entries, got 1",
        ),
        (
            lambda: presplit_batch(torch.ones(2, 3), None, targets=None, num_microbatches=2),  # type: ignore[arg-type]
            "arg_mbs must be a list or tuple of 2 microbatches, got a Tensor",
        ),
        (
            lambda: presplit_batch(None, None, targets=2, num_microbatches=2),  # type: ignore[arg-type]
            "target_mbs must be a list or tuple",
        ),
        (
            lambda: presplit_batch(None, ["a", "b"], targets=None, num_microbatches=2),  # type: ignore[list-item]
            "kwarg_mbs must hold a mapping",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused(call: object, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        call()  # type: ignore[operator]


def test_microbatches_cut_by_the_caller_weigh_the_same() -> None:
    batch = presplit_batch(
        [(torch.ones(1),), torch.ones(2)], [{"a": 1}, {"a": 2}], targets=[1, 2], num_microbatches=2
    )
    assert [len(a) for a in batch.args] == [1, 1]
    assert batch.weights == (0.5, 0.5)


def test_merge_joins_tensors_stacks_scalars_and_keeps_plain_values() -> None:
    parts = [{"y": torch.ones(2, 3), "n": torch.tensor(float(m)), "flag": True} for m in range(3)]
    merged = merge(parts)
    assert merged["y"].shape == (6, 3)
    assert torch.equal(merged["n"], torch.tensor([0.0, 1.0, 2.0]))
    assert merged["flag"] is True


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([torch.ones(1, 2), torch.ones(1, 3)], "different shapes"),
        ([True, False], "outputs differ: True"),
        ([torch.ones(1), {"y": torch.ones(1)}], "differ in structure"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(parts: list[object], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        merge(parts)
