"""Layouts: what of a value travels once, and what every time."""

import collections
import math

import pytest
import torch
from tests.runtime.values import DTYPES, VALUES, Registered, X, same
from torch.utils import _pytree as pytree

from fullbore.errors import ParameterError
from fullbore.runtime.wire import (
    ALIGNMENT,
    MAX_LAYOUTS,
    Describer,
    Form,
    LayoutNumbers,
    copies,
    decode,
    encode,
    fill,
    finish,
    quick_key,
    unpack,
    views,
)

pytestmark = pytest.mark.torch


def through(value, *, in_place: bool):
    layout, tensors = Describer()(value)
    known = decode(encode(layout))
    assert known == layout
    assert hash(known) == hash(layout)
    buffer = torch.zeros(max(layout.nbytes, 1), dtype=torch.uint8)
    fill(views(layout, buffer), tensors)
    if in_place and layout.nbytes:
        memory = bytearray(buffer.numpy().tobytes()[: layout.nbytes])
        return finish(known, unpack(known, memory))
    return finish(known, copies(views(known, buffer)))


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "copied"])
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_a_value_arrives_as_it_was(value, in_place):
    assert same(through(value, in_place=in_place), value)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype):
    value = (torch.tensor([0.0, 1.0, 3.0]).to(dtype), torch.zeros((), dtype=dtype))
    assert same(through(value, in_place=True), value)
    assert same(through(value, in_place=False), value)


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "copied"])
def test_a_dense_tensor_keeps_its_order_in_memory(in_place):
    image = torch.randn(2, 3, 4, 5)
    kept = (
        torch.randn(6, 2, 1).transpose(0, 1),
        image.to(memory_format=torch.channels_last),
        image.permute(3, 1, 0, 2),
        torch.randn(3, 4, dtype=torch.complex64).t().conj(),
    )
    for value in (*kept, kept, {"a": kept[0], "b": 1}):
        got = through(value, in_place=in_place)
        assert same(got, value)
        for one, other in zip(pytree.tree_leaves(got), pytree.tree_leaves(value), strict=True):
            assert not isinstance(one, torch.Tensor) or one.stride() == other.stride()
    for value in (image[:, 1:], image[..., ::2], torch.ones(2, 1).expand(2, 3)):
        got = through(value, in_place=in_place)
        assert same(got, value)
        assert got.is_contiguous()


def test_tensors_that_differ_in_order_have_layouts_of_their_own():
    one = torch.randn(3, 3)
    assert quick_key(one) is not None
    assert quick_key(one.t()) is quick_key((one, one.t())) is None
    describe = Describer()
    assert describe(one)[0] != describe(one.t())[0]


def test_a_registered_dataclass():
    got = through(Registered(X, 2.5), in_place=True)
    assert isinstance(got, Registered)
    assert got.scale == 2.5
    assert torch.equal(got.hidden, X)


def test_gradients_are_asked_for_where_the_sender_did():
    hidden = torch.ones(2, requires_grad=True) * 2
    got = through({"h": hidden, "mask": torch.ones(2, dtype=torch.long)}, in_place=False)
    assert got["h"].requires_grad
    assert got["h"].is_leaf
    assert not got["mask"].requires_grad


def test_values_of_one_layout_share_it():
    describe = Describer()
    assert describe(X)[0] is describe(X + 1)[0]
    assert describe((X, X))[0] is describe((X + 1, X))[0]
    assert describe({"a": X, "b": 1})[0] is describe({"a": X + 1, "b": 1})[0]
    assert describe(X)[0].form is Form.TENSOR


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (X, X.double()),
        (X, X[:1]),
        (X, X.clone().requires_grad_()),
        (X, (X,)),
        ((X,), [X]),
        ([X, 1], [X, True]),
        ([X, 1], [X, 1.0]),
        ([X, 0.0], [X, -0.0]),
        ([X, "a"], [X, "b"]),
        ({"a": X}, {"b": X}),
    ],
)
def test_values_that_differ_have_layouts_that_differ(one, other):
    describe = Describer()
    assert describe(one)[0] != describe(other)[0]


def test_nan_is_one_value():
    describe = Describer()
    assert describe([X, math.nan])[0] is describe([X, float("nan")])[0]


def test_tensors_start_at_aligned_places():
    layout, _ = Describer()((torch.ones(1, dtype=torch.bool), X, X))
    assert [leaf.offset for leaf in layout.leaves] == [0, ALIGNMENT, 2 * ALIGNMENT]
    assert layout.nbytes == 2 * ALIGNMENT + X.numel() * 4


@pytest.mark.parametrize(
    "value",
    [object(), [X, {1, 2}], X.to_sparse(), {"t": (X.to_sparse(), X)}],
    ids=["object", "set", "sparse", "sparse in a tree"],
)
def test_what_cannot_be_sent_is_refused(value):
    with pytest.raises(ParameterError, match="cannot be sent to another stage"):
        Describer()(value)


def test_a_structure_that_others_cannot_import_is_refused():
    local = collections.namedtuple("local", "hidden")
    layout, _ = Describer()(local(X))
    with pytest.raises(ParameterError, match="importable"):
        encode(layout)


def test_places_can_be_filled_in_and_out_of_inference_mode():
    layout, _ = Describer()(X)
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8)
    with torch.inference_mode():
        places = views(layout, buffer)
        fill(places, [X + 1])
    fill(places, [X])
    assert torch.equal(places[0], X)


def test_the_describer_forgets():
    describe = Describer()
    for size in range(5 * MAX_LAYOUTS):
        layout, _ = describe([X, size])
        assert layout.plain == ((1, size),)
    assert len(describe._layouts) <= 4 * MAX_LAYOUTS


def test_numbers_are_few_and_go_to_the_layouts_in_use():
    describe, numbers = Describer(), LayoutNumbers()
    first, _ = describe([X, -1])
    assert numbers.find(first) is None
    kept = numbers.assign(first)
    for size in range(2 * MAX_LAYOUTS):
        layout, _ = describe([X, size])
        assert numbers.find(layout) is None
        assert 0 <= numbers.assign(layout) < MAX_LAYOUTS
        assert numbers.find(first) == kept
    forgotten, _ = describe([X, 0])
    assert numbers.find(forgotten) is None
