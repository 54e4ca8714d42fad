"""How a message looks on the wire: a layout, announced once, and the tensors' bytes.

A *layout* is everything about a message but the numbers in its tensors: the structure, the plain
values, and dtype, shape and place of each tensor. Messages of one layout differ in bytes only, so
an edge announces a layout once and afterwards names it by a small number. Shapes are therefore
learnt from the first real message and cost nothing later, and any message may bring a new one.

Layouts travel pickled: the ranks of one job run the same code and trust each other.
"""

from __future__ import annotations

import enum
import pickle
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fullbore.errors import ParameterError, TransportError
from fullbore.runtime.tree import Tree, is_plain

ALIGNMENT = 64
"""Every tensor of a message starts at a multiple of this many bytes."""

MAX_LAYOUTS = 256
"""Layouts that one edge remembers."""


class Form(enum.Enum):
    """The structures that need no pytree: they are most messages, and flattening is slow."""

    TENSOR, TUPLE, TREE = range(3)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor of a message. If it is in main memory it is packed into ``nbytes`` bytes at
    ``offset``; if not, it goes its own way, and both are 0. It lies row by row, unless it has
    ``strides``: those of a tensor that is dense in another order, which the receiver's kernels
    would round differently without."""

    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...] | None
    requires_grad: bool
    on_cpu: bool
    offset: int
    nbytes: int


class Layout:
    """What a message is, but for its tensors' contents. Immutable.

    Attributes:
        form: ``TENSOR``: one tensor; ``TUPLE``: a tuple of tensors; ``TREE``: see ``spec``.
        leaves: the tensors, in pytree order.
        packed: those in main memory.
        device: the positions, in ``leaves``, of those that are not.
        differentiable: the positions of those that ask for a gradient.
        spec: the structure of a ``TREE``.
        plain: the leaves of a ``TREE`` that are no tensors, by their position in pytree order.
        nbytes: size of the packed tensors.
    """

    __slots__ = (
        "_hash",
        "_key",
        "device",
        "differentiable",
        "form",
        "leaves",
        "nbytes",
        "packed",
        "plain",
        "spec",
    )

    def __init__(
        self,
        form: Form,
        leaves: tuple[Leaf, ...],
        *,
        spec: pytree.TreeSpec | None = None,
        plain: tuple[tuple[int, object], ...] = (),
    ) -> None:
        self.form, self.leaves, self.spec, self.plain = form, leaves, spec, plain
        self.packed = tuple(leaf for leaf in leaves if leaf.on_cpu)
        self.device = tuple(i for i, leaf in enumerate(leaves) if not leaf.on_cpu)
        self.nbytes = self.packed[-1].offset + self.packed[-1].nbytes if self.packed else 0
        self.differentiable = tuple(i for i, leaf in enumerate(leaves) if leaf.requires_grad)
        named = tuple((index, _token(value)) for index, value in plain)
        self._key = (form, leaves, spec, named)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self._key == other._key)

    def __reduce__(self) -> tuple[Any, ...]:
        # The hash depends on the process and must not travel.
        return _remake, (self.form, self.leaves, _write_spec(self.spec), self.plain)

    def rebuild(self, tensors: Sequence[Tensor]) -> Tree:
        """The ``TREE`` whose tensors are ``tensors``."""
        assert self.spec is not None
        leaves: list[object] = list(tensors)
        for index, value in self.plain:
            leaves.insert(index, value)
        return pytree.tree_unflatten(leaves, self.spec)


_Spec = tuple[Any, Any, tuple[Any, ...]] | None


def _write_spec(spec: pytree.TreeSpec | None) -> _Spec:
    """The spec as nested tuples: torch's own class for leaves warns when it is unpickled."""
    if spec is None or spec.is_leaf():
        return None
    return spec.type, spec.context, tuple(_write_spec(child) for child in spec.children())


def _read_spec(text: _Spec) -> pytree.TreeSpec:
    if text is None:
        return pytree.tree_structure(None)
    kind, context, children = text
    return pytree.TreeSpec(kind, context, [_read_spec(child) for child in children])


def _remake(
    form: Form, leaves: tuple[Leaf, ...], spec: _Spec, plain: tuple[tuple[int, object], ...]
) -> Layout:
    return Layout(form, leaves, spec=_read_spec(spec) if form is Form.TREE else None, plain=plain)


class Describer:
    """Finds the layouts of values; it remembers those it made.

    ``describe(value) -> (layout, tensors)``: the tensors are those of ``value``, in pytree order.

    Raises:
        ParameterError: the value holds something that cannot be sent.
    """

    def __init__(self) -> None:
        self._layouts: dict[Hashable, Layout] = {}

    def __call__(self, value: Tree) -> tuple[Layout, Sequence[Tensor]]:
        """See the class."""
        if isinstance(value, Tensor):
            return self._known(_token(value), Form.TENSOR, [value], None), (value,)
        if type(value) is tuple and all(isinstance(leaf, Tensor) for leaf in value):
            key = tuple(_token(leaf) for leaf in value)
            return self._known(key, Form.TUPLE, value, None), value
        leaves, spec = pytree.tree_flatten(value)
        key = (spec, tuple(_token(leaf) for leaf in leaves))
        layout = self._known(key, Form.TREE, leaves, spec)
        return layout, [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def _known(
        self, key: Hashable, form: Form, leaves: Sequence[object], spec: pytree.TreeSpec | None
    ) -> Layout:
        layout = self._layouts.get(key)
        if layout is not None:
            return layout
        places = tuple(_place([leaf for leaf in leaves if isinstance(leaf, Tensor)]))
        plain = tuple(
            (index, leaf) for index, leaf in enumerate(leaves) if not isinstance(leaf, Tensor)
        )
        if len(self._layouts) >= 4 * MAX_LAYOUTS:
            self._layouts.clear()
        layout = self._layouts[key] = Layout(form, places, spec=spec, plain=plain)
        return layout


def quick_key(value: Tree) -> Hashable:
    """A cheap name of the layout of a tensor or a tuple of tensors; None for other values."""
    if type(value) is Tensor:
        if not _is_row_by_row(value):
            return None
        return value.dtype, value.shape, value.requires_grad, value.is_cpu
    if type(value) is not tuple:
        return None
    keys = []
    for leaf in value:
        if type(leaf) is not Tensor or not _is_row_by_row(leaf):
            return None
        keys.append((leaf.dtype, leaf.shape, leaf.requires_grad, leaf.is_cpu))
    return tuple(keys)


def _token(leaf: object) -> Hashable:
    """Equal for leaves that one layout can describe, and only for those."""
    if isinstance(leaf, Tensor):
        if type(leaf) is not Tensor and hasattr(leaf, "__tensor_flatten__"):
            raise _not_plain(type(leaf).__name__)
        return leaf.dtype, leaf.shape, _strides(leaf), leaf.requires_grad, leaf.is_cpu
    if isinstance(leaf, float | complex):
        return type(leaf), repr(leaf)  # 0.0 == -0.0, and nan is not itself
    if is_plain(leaf):
        return type(leaf), leaf  # 1 == True
    raise ParameterError(
        f"an object of {type(leaf).__qualname__} cannot be sent to another stage: only tensors and "
        "plain values (None, bool, int, float, str), and pytrees of them; register the class with "
        "torch.utils._pytree, or return its tensors"
    )


def _place(tensors: Sequence[Tensor]) -> Iterator[Leaf]:
    offset = 0
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise _not_plain(tensor.type())
        known = tensor.dtype, tensor.shape, _strides(tensor), tensor.requires_grad
        if not tensor.is_cpu:
            yield Leaf(*known, on_cpu=False, offset=0, nbytes=0)
            continue
        nbytes = tensor.numel() * tensor.element_size()
        yield Leaf(*known, on_cpu=True, offset=offset, nbytes=nbytes)
        offset += -(-nbytes // ALIGNMENT) * ALIGNMENT


def in_memory_order(tensor: Tensor) -> Tensor:
    """A view of ``tensor`` that lies row by row, with its dimensions in another order if that is
    what it takes; a copy that lies row by row if there is none."""
    permuted = _permuted(tensor)
    return permuted if permuted.is_contiguous() else tensor.contiguous()


def _permuted(tensor: Tensor) -> Tensor:
    strides = tensor.stride()
    return tensor.permute(sorted(range(tensor.dim()), key=lambda dim: -strides[dim]))


def _strides(tensor: Tensor) -> tuple[int, ...] | None:
    """As ``Leaf`` says."""
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return None
    return tensor.stride() if _permuted(tensor).is_contiguous() else None


def _is_row_by_row(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.is_contiguous()


def _not_plain(kind: str) -> ParameterError:
    return ParameterError(
        f"a {kind} cannot be sent to another stage; make it a plain dense tensor "
        "(.to_local(), .to_dense(), .dequantize())"
    )


def encode(layout: Layout) -> bytes:
    """The layout for another process.

    Raises:
        ParameterError: its structure cannot be pickled.
    """
    try:
        return pickle.dumps(layout, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ParameterError(
            f"this structure cannot be sent to another stage: {error}; its classes must be "
            "importable"
        ) from error


def decode(text: bytes) -> Layout:
    """The layout that :func:`encode` was given, in another process of the same job.

    Raises:
        TransportError: a class that its structure needs cannot be imported here.
    """
    try:
        layout = pickle.loads(text)
    except (ImportError, AttributeError) as error:
        raise TransportError(f"what another rank sent cannot be built here: {error}") from error
    assert isinstance(layout, Layout)
    return layout


def views(layout: Layout, buffer: Tensor) -> list[Tensor]:
    """The places of the packed tensors in ``buffer`` (1-d, uint8, at least ``nbytes`` long)."""
    # A view made under inference mode could not be written to outside of it.
    with torch.inference_mode(False):
        return [
            _shaped(buffer[leaf.offset : leaf.offset + leaf.nbytes].view(leaf.dtype), leaf)
            for leaf in layout.packed
        ]


def fill(places: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copy ``tensors``, of any strides and with or without a graph, to their places."""
    for place, tensor in zip(places, tensors, strict=True):
        place.copy_(tensor.detach() if tensor.requires_grad else tensor)


def copies(places: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that are now in ``places``, in memory of their own."""
    return [place.clone() for place in places]


def unpack(layout: Layout, memory: Any) -> list[Tensor]:
    """The packed tensors that are in ``memory``, a writable buffer of ``nbytes`` bytes (at least
    one) that lives for as long as any of them."""
    if layout.form is Form.TENSOR:
        leaf = layout.packed[0]
        return [_shaped(torch.frombuffer(memory, dtype=leaf.dtype), leaf)]
    return [
        _shaped(
            torch.frombuffer(
                memory,
                dtype=leaf.dtype,
                count=leaf.nbytes // leaf.dtype.itemsize,
                offset=leaf.offset,
            ),
            leaf,
        )
        if leaf.nbytes
        else torch.empty(leaf.shape, dtype=leaf.dtype)
        for leaf in layout.packed
    ]


def _shaped(flat: Tensor, leaf: Leaf) -> Tensor:
    if leaf.strides is None:
        return flat.view(leaf.shape)
    return flat.as_strided(leaf.shape, leaf.strides)


def finish(layout: Layout, tensors: Sequence[Tensor]) -> Tree:
    """The value whose tensors are ``tensors``, which become leaves that ask for a gradient where
    the sender's did."""
    for index in layout.differentiable:
        tensors[index].requires_grad_()
    form = layout.form
    if form is Form.TENSOR:
        return tensors[0]
    return tuple(tensors) if form is Form.TUPLE else layout.rebuild(tensors)


class LayoutNumbers:
    """The numbers under which the other side of an edge knows layouts. At most ``MAX_LAYOUTS``:
    then the least recently used one gives up its number."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[Layout, int] = OrderedDict()

    def find(self, layout: Layout) -> int | None:
        """The layout's number, or None if it has to be announced."""
        number = self._numbers.get(layout)
        if number is not None:
            self._numbers.move_to_end(layout)
        return number

    def assign(self, layout: Layout) -> int:
        """A number for a layout that has none."""
        full = len(self._numbers) >= MAX_LAYOUTS
        number = self._numbers.popitem(last=False)[1] if full else len(self._numbers)
        self._numbers[layout] = number
        return number
