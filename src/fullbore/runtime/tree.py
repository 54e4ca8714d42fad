"""The values that stages exchange: any pytree of tensors and plain values."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fullbore.errors import ParameterError

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)

Tree = Any
"""A tensor, a plain value (None, bool, int, float, str), or a pytree of them."""


def tensors(tree: Tree) -> list[Tensor]:
    """The tensor leaves of ``tree``, in pytree order."""
    if isinstance(tree, Tensor):
        return [tree]
    if type(tree) is tuple and all(isinstance(leaf, Tensor) for leaf in tree):
        return list(tree)
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def is_plain(leaf: object) -> bool:
    """Whether a leaf that is no tensor is a value that can be copied without being looked into."""
    return type(leaf) in _PLAIN or isinstance(leaf, enum.Enum)


def boundary_tensors(tree: Tree) -> list[Tensor]:
    """The tensor leaves of what a stage hands to the next one, in pytree order.

    Raises:
        ParameterError: a leaf is of a class that pytree does not look into. The graph of tensors in
            it would cross the boundary unseen.
    """
    if isinstance(tree, Tensor):
        return [tree]
    if type(tree) is tuple and all(isinstance(leaf, Tensor) for leaf in tree):
        return list(tree)
    leaves = pytree.tree_leaves(tree)
    found = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if len(found) < len(leaves):
        for leaf in leaves:
            if not isinstance(leaf, Tensor) and not is_plain(leaf):
                raise ParameterError(
                    f"an object of {type(leaf).__qualname__} cannot be handed to another stage: "
                    "only tensors and plain values (None, bool, int, float, str), and pytrees of "
                    "them; register the class with torch.utils._pytree, or return its tensors"
                )
    return found


def detach(tree: Tree) -> Tree:
    """``tree`` with every tensor cut from its graph: a leaf that asks for a gradient where the
    original did. The memory is shared."""
    if isinstance(tree, Tensor):
        return _cut(tree)
    return pytree.tree_map_only(Tensor, _cut, tree)


def _cut(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


class Handed(NamedTuple):
    """What a stage returned, on its way by reference, and what PyTorch counted of changes to it."""

    value: Tree
    versions: list[int]

    @classmethod
    def of(cls, tree: Tree) -> Handed:
        """``tree`` as it is now."""
        return cls(tree, _versions(tree))

    def take(self) -> Tree:
        """The value.

        Raises:
            ParameterError: it was changed in place since.
        """
        if _versions(self.value) != self.versions:
            raise ParameterError(
                "a tensor that a stage returned was changed in place before it was used or sent; "
                "the stage must return a copy (clone()) of what it changes later"
            )
        return self.value


def _versions(tree: Tree) -> list[int]:
    # Tensors made in inference mode are not counted.
    return [t._version for t in tensors(tree) if not t.is_inference()]


def without_graph(tree: Tree) -> Tree:
    """``tree`` with every tensor cut from its graph, and none that asks for a gradient."""
    return pytree.tree_map_only(Tensor, Tensor.detach, tree)


def is_differentiable(tensor: Tensor) -> bool:
    """Whether a gradient with respect to ``tensor`` can exist at all."""
    return tensor.is_floating_point() or tensor.is_complex()


def ask_for_gradients(tree: Tree) -> None:
    """Let every tensor that can have a gradient want one: where no graph is recorded, nothing else
    says so."""
    for tensor in tensors(tree):
        if is_differentiable(tensor):
            tensor.requires_grad_()
