"""The values that stages exchange: any pytree of tensors and plain values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Tree = Any
"""A tensor, a plain value (None, bool, int, float, str), or a pytree of them."""


def tensors(tree: Tree) -> list[Tensor]:
    """The tensor leaves of ``tree``, in pytree order."""
    if isinstance(tree, Tensor):
        return [tree]
    if type(tree) is tuple and all(isinstance(leaf, Tensor) for leaf in tree):
        return list(tree)
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def detach(tree: Tree) -> Tree:
    """``tree`` with every tensor cut from its graph: a leaf that asks for a gradient where the
    original did. The memory is shared."""
    if isinstance(tree, Tensor):
        return _cut(tree)
    return pytree.tree_map_only(Tensor, _cut, tree)


def _cut(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def is_differentiable(tensor: Tensor) -> bool:
    """Whether a gradient with respect to ``tensor`` can exist at all."""
    return tensor.is_floating_point() or tensor.is_complex()


def is_scalar(value: object) -> bool:
    """Whether ``value`` is a tensor of one element without dimensions."""
    return isinstance(value, torch.Tensor) and value.dim() == 0
