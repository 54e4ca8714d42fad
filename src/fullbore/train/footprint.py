"""What a stage holds of a microbatch: found out by passing one through a copy of it."""

from __future__ import annotations

import weakref
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fullbore.runtime.backward import SplitBackward
from fullbore.train.model import GPT, loss_fn
from fullbore.train.settings import ModelSize

_COPIES = 4
"""A parameter, its gradient, and AdamW's two averages."""


class Footprint(NamedTuple):
    """What a stage holds, in bytes.

    Attributes:
        activations: of a microbatch from F to I, its input included.
        kept: of a microbatch from I to W.
        static: parameters, gradients and optimizer state.
    """

    activations: int
    kept: int
    static: int


def footprint(part: GPT, size: ModelSize, *, rows: int) -> Footprint:
    """What a part of the model holds of a microbatch of so many rows.

    Counted is every storage that an operation makes, from then until it is freed; what a kernel
    allocates and frees within a call is not. The part itself is left as it is.
    """
    static = _COPIES * sum(p.numel() * p.element_size() for p in part.parameters())
    copy = deepcopy(part)
    for parameter in copy.parameters():
        parameter.grad = torch.zeros_like(parameter)  # that is static
    device = next(copy.parameters()).device
    watch = _Watch()
    with watch:
        given = _input(copy, size, rows, device)
        output = copy(given)
        if copy.head is not None:
            target = torch.zeros(rows, size.sequence_length, dtype=torch.long, device=device)
            output = loss_fn(output, target)
            watch.held -= target.nbytes  # the batch is there all the time
        split = SplitBackward([get_gradient_edge(output)], [given])
        shape = output.shape
        del output
    activations = watch.held
    with watch:
        gradient = torch.ones(shape, device=device)
        split.input_backward([gradient])
        # The gradient of the input goes to the stage before.
        del given, gradient
    # What W needs is there by I at the latest, and makes the peak where it is more.
    return Footprint(max(activations, watch.held), watch.held, static)


def _input(part: GPT, size: ModelSize, rows: int, device: torch.device) -> Tensor:
    shape = (rows, size.sequence_length)
    if part.embedding is not None:
        return torch.zeros(shape, dtype=torch.long, device=device)
    return torch.randn(*shape, size.width, device=device).requires_grad_()


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's
    """Counts the bytes of all storages made while it is active, until they die."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self.held = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        # A view of what was there before, or a result written into it, is nothing new.
        there = {
            leaf.untyped_storage()._cdata
            for leaf in pytree.arg_tree_leaves(*args, **kwargs)
            if isinstance(leaf, Tensor)
        }
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in there:
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            return

        def died(_: object) -> None:
            del self._alive[key]
            self.held -= size

        self._alive[key] = weakref.ref(storage, died)
        self.held += size
