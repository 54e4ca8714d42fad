"""Cutting a batch as torch.distributed.pipelining does, and putting outputs together again.

Every tensor is cut along dim 0 unless a spec says otherwise, whatever its size; anything else goes
to every microbatch whole. ``fullbore.runtime`` has another rule, which compares sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.pipelining.microbatch import (
    DEFAULT_CHUNK_DIM,
    TensorChunkSpec,
    _CustomReducer,
    _LossReducer,
    _Replicate,
    sum_reducer,
)
from torch.distributed.tensor import DTensor
from torch.nn.attention.flex_attention import BlockMask
from torch.utils import _pytree as pytree

from fullbore.errors import ParameterError
from fullbore.runtime import merge
from fullbore.runtime.tree import Tree, is_plain

__all__ = [
    "DEFAULT_CHUNK_DIM",
    "TensorChunkSpec",
    "_CustomReducer",
    "_LossReducer",
    "_Replicate",
    "merge_chunks",
    "split_args_kwargs_into_chunks",
    "split_target_into_chunks",
    "sum_reducer",
]


_ALONG_ROWS = TensorChunkSpec(DEFAULT_CHUNK_DIM)  # type: ignore[no-untyped-call]


class _Leaf(NamedTuple):
    """A leaf of a value, where it stands, and along which dimension it is cut (None: whole)."""

    value: Any
    where: str
    dim: int | None


def split_args_kwargs_into_chunks(
    args: tuple[Tree, ...],
    kwargs: Mapping[str, Tree] | None,
    chunks: int,
    args_chunk_spec: Any = None,
    kwargs_chunk_spec: Mapping[str, Any] | None = None,
) -> tuple[list[tuple[Tree, ...]], list[dict[str, Tree]]]:
    """Cut arguments into ``chunks`` microbatches; sizes differ by one at most.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.
        chunks: how many microbatches; there are fewer if a tensor has fewer rows.
        args_chunk_spec: a ``TensorChunkSpec(dim)`` or ``_Replicate`` for each positional argument,
            or for each leaf of it; None cuts tensors and BlockMasks along dim 0.
        kwargs_chunk_spec: the same by keyword. One that is not named is treated as if None.

    Raises:
        ParameterError: a spec does not fit its value.
    """
    named = dict(kwargs or {})
    given = (
        _leaves(tuple(args), args_chunk_spec, "argument"),
        _keyword_leaves(named, kwargs_chunk_spec or {}),
    )
    sizes = [_extent(leaf) for leaves in given for leaf in leaves if leaf.dim is not None]
    count = max(1, min([chunks, *sizes]))
    cut_args, cut_kwargs = (
        _assemble(value, leaves, count) for value, leaves in zip((args, named), given, strict=True)
    )
    return cut_args, cut_kwargs


def split_target_into_chunks(target: Tree, chunks: int) -> list[Tree]:
    """Cut a target along dim 0 into ``chunks`` microbatches.

    Raises:
        ParameterError: it has fewer rows.
    """
    leaves = _leaves(target, None, "target")
    for leaf in leaves:
        if not isinstance(leaf.value, Tensor | BlockMask) and not is_plain(leaf.value):
            raise ParameterError(
                f"{leaf.where}: a {type(leaf.value).__qualname__} cannot be cut; a target holds "
                "tensors and plain values. Give target_mbs for others"
            )
        if leaf.dim is not None and _extent(leaf) < chunks:
            raise ParameterError(
                f"{leaf.where}: {chunks} microbatches need as many rows; there are {_extent(leaf)}"
            )
    return _assemble(target, leaves, chunks)


def row_weights(
    args: tuple[Tree, ...],
    kwargs: Mapping[str, Tree],
    target: Tree,
    *,
    chunks: int,
    specs: tuple[Any, Mapping[str, Any] | None] = (None, None),
) -> tuple[float, ...] | None:
    """Each microbatch's share of the rows of the first tensor that is cut: of the arguments, else
    of the target, else of the keyword arguments. None where no tensor is cut."""
    values = (
        _leaves(tuple(args), specs[0], "argument"),
        _leaves(target, None, "target"),
        _keyword_leaves(dict(kwargs), specs[1] or {}),
    )
    rows = next((_extent(x) for leaves in values for x in leaves if x.dim is not None), None)
    if rows is None:
        return None
    base, more = divmod(rows, chunks)
    return tuple((base + (m < more)) / rows for m in range(chunks))


def merge_chunks(chunks: Sequence[Tree], chunk_spec: Any) -> Tree:
    """Put the microbatches' outputs together.

    Args:
        chunks: one value a microbatch.
        chunk_spec: what to do with each leaf: ``TensorChunkSpec(dim)`` joins tensors along ``dim``,
            a ``_CustomReducer`` reduces, anything else wants equal values. None joins tensors along
            dim 0, stacks those without dimensions, and wants equal plain values.

    Raises:
        ParameterError: the values do not fit the spec, or differ where they must not.
    """
    if chunk_spec is None:
        has_dtensor = any(isinstance(t, DTensor) for t in pytree.tree_leaves(list(chunks)))
        if not has_dtensor:
            return merge(chunks)
        chunk_spec = pytree.tree_map(lambda _: _ALONG_ROWS, chunks[0])
    specs, structure = pytree.tree_flatten(chunk_spec)
    flat = [pytree.tree_leaves(chunk) for chunk in chunks]
    odd = next((leaves for leaves in flat if len(leaves) != len(specs)), None)
    if odd is not None:
        raise ParameterError(
            f"the output has {len(odd)} leaves, output_merge_spec {chunk_spec!r} has {len(specs)}"
        )
    columns = zip(*flat, strict=True)
    merged = [_merge(column, spec) for column, spec in zip(columns, specs, strict=True)]
    return pytree.tree_unflatten(merged, structure)


def _merge(column: Sequence[Any], spec: object) -> Any:
    if isinstance(spec, _CustomReducer):
        return reduce(spec.reduce_fn, column, spec.init_value)
    if isinstance(spec, TensorChunkSpec):
        return _join(column, spec.split_dim)
    if any(value is not column[0] and not _equal(value, column[0]) for value in column[1:]):
        raise ParameterError(f"the microbatches' outputs differ: {column[0]!r} and others")
    return column[0]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return bool(one == other)


def _join(column: Sequence[Any], dim: int) -> Tensor:
    sharded = [isinstance(value, DTensor) for value in column]
    if not any(sharded):
        return torch.cat(list(column), dim)
    if not all(sharded) or len({value.placements for value in column}) > 1:
        raise ParameterError("the microbatches' outputs are DTensors of different placements")
    size = sum(value.shape[dim] for value in column)
    return _sharded_like(column[0], torch.cat([v.to_local() for v in column], dim), dim, size)


def _sharded_like(original: DTensor, local: Tensor, dim: int, size: int) -> DTensor:
    """``local`` as a DTensor like ``original``, but for ``size`` along ``dim``."""
    shape = torch.Size(
        size if d == dim % original.dim() else n for d, n in enumerate(original.shape)
    )
    return DTensor.from_local(
        local,
        original.device_mesh,
        original.placements,
        shape=shape,
        stride=original.stride(),
        run_check=False,
    )


def _is_leaf(value: object) -> bool:
    return isinstance(value, (BlockMask, TensorChunkSpec, _Replicate)) or value is _Replicate


def _leaves(value: Tree, spec: Any, where: str) -> list[_Leaf]:
    """The leaves of ``value`` with their specs."""
    paths, structure = pytree.tree_flatten_with_path(value, is_leaf=_is_leaf)
    specs: list[Any] = [None] * len(paths)
    if spec is not None:
        spec = tuple(spec) if isinstance(spec, list) and isinstance(value, tuple) else spec
        spread = pytree._broadcast_to_and_flatten(
            spec, structure, is_leaf=lambda x: x is None or _is_leaf(x)
        )
        if spread is None:
            raise ParameterError(f"{where}: the chunk spec {spec!r} does not fit the value")
        specs = spread
    return [
        _leaf(leaf, own, where + pytree.keystr(path))
        for (path, leaf), own in zip(paths, specs, strict=True)
    ]


def _keyword_leaves(kwargs: Mapping[str, Tree], specs: Mapping[str, Any]) -> list[_Leaf]:
    unknown = sorted(set(specs) - set(kwargs))
    if unknown and kwargs:
        raise ParameterError(f"kwargs_chunk_spec names {unknown[0]!r}, which is not an argument")
    parts = [
        _leaves(value, specs.get(key), f"keyword argument {key!r}") for key, value in kwargs.items()
    ]
    return [leaf for part in parts for leaf in part]


def _leaf(value: Any, spec: Any, where: str) -> _Leaf:
    if isinstance(spec, TensorChunkSpec):
        if isinstance(value, BlockMask) and spec.split_dim != 0:
            raise ParameterError(f"{where}: a BlockMask can only be cut along dim 0")
        if not isinstance(value, Tensor | BlockMask):
            raise ParameterError(
                f"{where}: a tensor can be cut, a value of type {type(value).__qualname__} cannot; "
                "give it the chunk spec _Replicate()"
            )
        return _Leaf(value, where, spec.split_dim)
    if spec is _Replicate or isinstance(spec, _Replicate):
        return _Leaf(value, where, None)
    if spec is not None:
        raise ParameterError(f"{where}: {spec!r} is not TensorChunkSpec(dim) or _Replicate()")
    if isinstance(value, BlockMask):
        # One mask for all rows is broadcast.
        return _Leaf(value, where, 0 if value.kv_num_blocks.size(0) > 1 else None)
    if not isinstance(value, Tensor) and getattr(value, "shape", None):
        raise ParameterError(
            f"{where}: a {type(value).__qualname__} is not cut, as only tensors are; make a tensor "
            "of it, or give it the chunk spec _Replicate() to hand it to each microbatch whole"
        )
    cut = isinstance(value, Tensor) and value.dim() > 0
    return _Leaf(value, where, DEFAULT_CHUNK_DIM if cut else None)


def _extent(leaf: _Leaf) -> int:
    assert leaf.dim is not None
    if isinstance(leaf.value, BlockMask):
        return int(leaf.value.kv_num_blocks.size(0))
    if not -leaf.value.dim() <= leaf.dim < leaf.value.dim():
        raise ParameterError(
            f"{leaf.where}: a tensor of shape {tuple(leaf.value.shape)} has no dim {leaf.dim}"
        )
    return int(leaf.value.shape[leaf.dim])


def _assemble(value: Tree, leaves: list[_Leaf], count: int) -> list[Any]:
    structure = pytree.tree_structure(value, is_leaf=_is_leaf)
    pieces = [_cut(leaf, count) for leaf in leaves]
    return [pytree.tree_unflatten([piece[m] for piece in pieces], structure) for m in range(count)]


def _cut(leaf: _Leaf, count: int) -> Sequence[Any]:
    value, dim = leaf.value, leaf.dim
    if dim is None:
        return [value] * count
    if isinstance(value, BlockMask):
        return _cut_mask(value, count)
    if not isinstance(value, DTensor):
        return torch.tensor_split(value, count, dim)
    # Of the local part: DTensor's own split would gather it first.
    base, more = divmod(value.shape[dim], count)
    local = torch.tensor_split(value.to_local(), count, dim)
    return [_sharded_like(value, x, dim, base + (m < more)) for m, x in enumerate(local)]


def _cut_mask(mask: BlockMask, count: int) -> list[BlockMask]:
    def parts(tensor: Tensor | None) -> Sequence[Any]:
        return [None] * count if tensor is None else torch.tensor_split(tensor, count)

    first_rows, masks = 0, []
    for m, numbers in enumerate(parts(mask.kv_num_blocks)):
        masks.append(
            BlockMask.from_kv_blocks(
                kv_num_blocks=numbers,
                kv_indices=parts(mask.kv_indices)[m],
                full_kv_num_blocks=parts(mask.full_kv_num_blocks)[m],
                full_kv_indices=parts(mask.full_kv_indices)[m],
                BLOCK_SIZE=mask.BLOCK_SIZE,
                mask_mod=_moved(mask.mask_mod, first_rows),
                seq_lengths=mask.seq_lengths,
            )
        )
        first_rows += numbers.size(0)
    return masks


def _moved(mask_mod: Callable[..., Tensor], rows: int) -> Callable[..., Tensor]:
    """``mask_mod`` of a microbatch that starts at row ``rows`` of the batch."""

    def moved(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return mask_mod(b + rows, h, q_idx, kv_idx)

    return moved
