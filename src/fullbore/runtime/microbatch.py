"""Cutting a batch into microbatches, and putting outputs together again.

The rule: the batch size is dim 0 of the first positional tensor. Positional arguments and the
target are split along dim 0, and a tensor of another size there is an error unless a spec says what
to do with it. A keyword tensor is split where its dim 0 has the batch's size and handed to every
microbatch whole otherwise. Plain values always go to every microbatch. A spec overrides all that,
and is needed for an object of a class that pytree does not look into: it may hold tensors that
would have to be cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fullbore.errors import ParameterError
from fullbore.runtime.tree import Tree, is_plain


@dataclass(frozen=True, slots=True)
class Split:
    """Cut a tensor along ``dim``.

    Raises:
        ParameterError: ``dim`` is no whole number.
    """

    dim: int = 0

    def __post_init__(self) -> None:
        if type(self.dim) is not int:
            raise ParameterError(f"Split: dim must be a whole number, got {self.dim!r}")


@dataclass(frozen=True, slots=True)
class Replicate:
    """Give a value to every microbatch whole."""


Spec = Any
"""``Split``, ``Replicate``, None (the rule of this module), or a pytree of them that reaches as far
down the value as is needed."""


@dataclass(frozen=True, slots=True)
class Specs:
    """How to cut one batch: a spec for the tuple of positional arguments, for the dict of keyword
    arguments, and for the target. A keyword that ``kwargs`` doesn't name follows the rule.

    Raises:
        ParameterError: ``kwargs`` is no mapping.
    """

    args: Spec = None
    kwargs: Mapping[str, Spec] | None = None
    target: Spec = None

    def __post_init__(self) -> None:
        if not isinstance(self.kwargs, Mapping | None):
            raise ParameterError(
                "kwargs_spec must give a spec by keyword, as {'mask': Replicate()}, got "
                f"{self.kwargs!r}"
            )


@dataclass(frozen=True, slots=True)
class Batch:
    """M microbatches: positional arguments, keyword arguments, targets, and each one's weight (None
    where no tensor tells how many rows there are)."""

    args: Sequence[tuple[Tree, ...]]
    kwargs: Sequence[dict[str, Tree]]
    targets: Sequence[Tree] | None
    weights: tuple[float, ...] | None


def split_batch(
    args: tuple[Tree, ...],
    kwargs: dict[str, Tree],
    *,
    target: Tree = None,
    num_microbatches: int,
    specs: Specs | None = None,
) -> Batch:
    """Cut a batch into ``num_microbatches``; sizes differ by one row at most.

    The weight of a microbatch is its share of the rows.

    Raises:
        ParameterError: a tensor doesn't have the batch's size, or a value cannot be looked into,
            and no spec says what to do; a spec doesn't fit its value; or there are fewer rows than
            microbatches.
    """
    specs = Specs() if specs is None else specs
    named = specs.kwargs or {}
    unknown = sorted(set(named) - set(kwargs))
    if unknown:
        raise ParameterError(f"kwargs spec names {unknown[0]!r}, which is not an argument")
    leaves = _pair("argument", args, specs.args)
    targets = _pair("target", target, specs.target)
    options = {
        key: _pair(f"keyword argument {key!r}", value, named.get(key))
        for key, value in kwargs.items()
    }
    # The batch size counts rows along the dimension that the first split tensor is cut along.
    split = [leaf for own in options.values() for leaf in own if isinstance(leaf.spec, Split)]
    rows = _batch_size(leaves) or _batch_size(targets) or _batch_size(split)
    if rows is not None and rows < num_microbatches:
        raise ParameterError(
            f"{num_microbatches} microbatches need at least as many rows; the batch has {rows}"
        )
    cutter = _Cutter(rows, num_microbatches)
    pieces_args = cutter.required(args, leaves)
    pieces_target = None if target is None else cutter.required(target, targets)
    pieces_kwargs = {key: cutter.optional(value, options[key]) for key, value in kwargs.items()}
    sizes = None if rows is None else _sizes(rows, num_microbatches)
    return Batch(
        args=pieces_args,
        kwargs=[{k: v[m] for k, v in pieces_kwargs.items()} for m in range(num_microbatches)],
        targets=pieces_target,
        weights=None if sizes is None else tuple(size / sum(sizes) for size in sizes),
    )


def presplit_batch(
    args: Sequence[Tree] | None,
    kwargs: Sequence[Mapping[str, Tree]] | None,
    *,
    targets: Sequence[Tree] | None,
    num_microbatches: int,
) -> Batch:
    """A batch that the caller has cut already; every microbatch weighs the same.

    Args:
        args: a tuple of positional arguments a microbatch (anything else counts as one argument).
        kwargs: a dict of keyword arguments a microbatch.
        targets: a target a microbatch.
        num_microbatches: how many there must be.

    Raises:
        ParameterError: one of them is not a list or tuple of ``num_microbatches`` entries, or a
            microbatch's keyword arguments are no mapping.
    """
    for name, value in (("arg_mbs", args), ("kwarg_mbs", kwargs), ("target_mbs", targets)):
        if value is None:
            continue
        if not isinstance(value, list | tuple):
            # A tensor has a length too, but its rows are no microbatches.
            raise ParameterError(
                f"{name} must be a list or tuple of {num_microbatches} microbatches, got a "
                f"{type(value).__qualname__}"
            )
        if len(value) != num_microbatches:
            raise ParameterError(f"{name} must hold {num_microbatches} entries, got {len(value)}")
    if kwargs is not None and not all(isinstance(named, Mapping) for named in kwargs):
        raise ParameterError("kwarg_mbs must hold a mapping for each microbatch")
    nothing: list[tuple[Tree, ...]] = [()] * num_microbatches
    return Batch(
        args=nothing if args is None else [a if type(a) is tuple else (a,) for a in args],
        kwargs=[{} for _ in nothing] if kwargs is None else [dict(k) for k in kwargs],
        targets=targets,
        weights=(1 / num_microbatches,) * num_microbatches,
    )


def merge(values: Sequence[Tree]) -> Tree:
    """Put the microbatches' outputs together: tensors are concatenated along dim 0 (those without
    dimensions are stacked), plain values must agree.

    Raises:
        ParameterError: the outputs cannot be put together; use them one by one.
    """
    flat = [pytree.tree_flatten(value) for value in values]
    if any(spec != flat[0][1] for _, spec in flat):
        raise ParameterError("the microbatches' outputs differ in structure")
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return pytree.tree_unflatten([_merge_leaf(column) for column in columns], flat[0][1])


def _merge_leaf(column: tuple[Tree, ...]) -> Tree:
    first = column[0]
    if len({isinstance(value, Tensor) for value in column}) > 1:
        raise ParameterError("the microbatches' outputs differ: some are tensors, others are not")
    if not isinstance(first, Tensor):
        if any(value is not first and value != first for value in column):
            raise ParameterError(f"the microbatches' outputs differ: {first!r} and others")
        return first
    if first.dim() == 0:
        return torch.stack(column)
    shapes = {tuple(tensor.shape[1:]) for tensor in column}
    if len(shapes) > 1:
        raise ParameterError(f"outputs of different shapes cannot be joined: {sorted(shapes)}")
    return torch.cat(column)


def _sizes(rows: int, num_microbatches: int) -> list[int]:
    base, more = divmod(rows, num_microbatches)
    return [base + (m < more) for m in range(num_microbatches)]


@dataclass(frozen=True, slots=True)
class _Leaf:
    """One leaf of a value with the spec that reaches it and where it stands."""

    value: Tree
    spec: Split | Replicate | None
    where: str


def _pair(where: str, value: Tree, spec: Spec) -> list[_Leaf]:
    """The leaves of ``value``, each with its spec."""
    paths, structure = pytree.tree_flatten_with_path(value)
    specs: list[Any] = [None] * len(paths)
    if spec is not None:
        spread = pytree._broadcast_to_and_flatten(spec, structure, is_leaf=_is_spec)
        if spread is None:
            raise ParameterError(f"{where}: the spec {spec!r} doesn't have the value's structure")
        specs = spread
    leaves = []
    for (path, leaf), own in zip(paths, specs, strict=True):
        if not _is_spec(own):
            raise ParameterError(f"{where}: {own!r} is not Split(dim), Replicate() or None")
        if own is None and not isinstance(leaf, Tensor) and not is_plain(leaf):
            raise ParameterError(
                f"{where}{pytree.keystr(path)}: a {type(leaf).__qualname__} cannot be cut; give it "
                "the spec Replicate() to hand it to every microbatch whole, or register its class "
                "with torch.utils._pytree"
            )
        leaves.append(_Leaf(leaf, own, where + pytree.keystr(path)))
    return leaves


def _is_spec(value: object) -> bool:
    return value is None or isinstance(value, (Split, Replicate))


def _batch_size(leaves: list[_Leaf]) -> int | None:
    for leaf in leaves:
        if isinstance(leaf.value, Tensor) and not isinstance(leaf.spec, Replicate):
            return _extent(leaf, 0 if leaf.spec is None else leaf.spec.dim)
    return None


def _extent(leaf: _Leaf, dim: int) -> int:
    dims = leaf.value.dim()
    if not -dims <= dim < dims:
        raise ParameterError(
            f"{leaf.where}: a tensor of shape {tuple(leaf.value.shape)} cannot be split along dim "
            f"{dim}; give it the spec Replicate() to hand it to every microbatch"
        )
    return int(leaf.value.shape[dim])


class _Cutter:
    """Cuts values of one batch."""

    def __init__(self, rows: int | None, num_microbatches: int) -> None:
        self._rows, self._count = rows, num_microbatches

    def required(self, value: Tree, leaves: list[_Leaf]) -> list[Tree]:
        """Cut positional arguments or a target: a tensor of another size is an error."""
        return self._assemble(value, [self._cut(leaf) for leaf in leaves])

    def optional(self, value: Tree, leaves: list[_Leaf]) -> list[Tree]:
        """Cut a keyword argument: a tensor of another size is replicated."""
        pieces: list[Sequence[Tree]] = []
        for leaf in leaves:
            tensor = leaf.value
            if leaf.spec is None and isinstance(tensor, Tensor):
                if self._rows is None and tensor.dim() > 0:
                    raise ParameterError(
                        f"{leaf.where}: the batch size is unknown here; pass the positional "
                        "arguments on every rank, or give kwargs a spec"
                    )
                if tensor.dim() == 0 or tensor.shape[0] != self._rows:
                    pieces.append([tensor] * self._count)
                    continue
            pieces.append(self._cut(leaf))
        return self._assemble(value, pieces)

    def _cut(self, leaf: _Leaf) -> Sequence[Tree]:
        if isinstance(leaf.spec, Replicate) or not isinstance(leaf.value, Tensor):
            return [leaf.value] * self._count
        dim = 0 if leaf.spec is None else leaf.spec.dim
        extent = _extent(leaf, dim)
        if extent != self._rows:
            raise ParameterError(
                f"{leaf.where}: {extent} rows along dim {dim} where the batch has {self._rows}; "
                "give it a spec, Split(dim) or Replicate()"
            )
        return torch.tensor_split(leaf.value, self._count, dim)

    def _assemble(self, value: Tree, pieces: list[Sequence[Tree]]) -> list[Tree]:
        if isinstance(value, Tensor):
            return list(pieces[0])
        if type(value) is tuple and value and all(isinstance(leaf, Tensor) for leaf in value):
            return list(zip(*pieces, strict=True))
        structure = pytree.tree_structure(value)
        return [
            pytree.tree_unflatten([piece[m] for piece in pieces], structure)
            for m in range(self._count)
        ]
