"""Counts the memory that a step holds, by watching every tensor operation.

What counts: each storage that an operation makes, from then until it is freed - activations, what
autograd and the runtime keep, buffers, gradients of inputs and weights - and the memory that
fullbore's transports keep for large messages, used or idle, where it was made. Weights and the
batch do not count, nor does what a kernel allocates and frees within one call. Hooks on saved
tensors would be the other way, but change what they measure: fullbore leaves a product whose
tensors somebody hooks to the full backward.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from bench.runtime_sides import Side
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fullbore.runtime.transport.memory import Shelf, capacity


class Watch(TorchDispatchMode):
    """Counts storages while it is active, and their deaths also later.

    Attributes:
        held: bytes now.
        peak: most bytes at any time since the last ``restart``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held = self.peak = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def made(self, size: int) -> Callable[[], None] | None:
        """A storage of ``size`` bytes was made: gives what to do when it dies, None if nothing."""
        self.grow(size)
        return lambda: self.grow(-size)

    def grow(self, size: int) -> None:
        """Count ``size`` bytes more."""
        self.held += size
        self.peak = max(self.peak, self.held)

    def restart(self) -> None:
        """Forget the highest value so far."""
        self.peak = self.held

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {
            leaf.untyped_storage()._cdata
            for leaf in pytree.arg_tree_leaves(*args, **(kwargs or {}))
            if isinstance(leaf, Tensor)
        }
        for leaf in pytree.tree_leaves(result):
            # A view of what was there before, or a result written into it, is nothing new.
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in given:
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._alive:
            return
        forget = self.made(storage.nbytes())
        if forget is None:
            return

        def died(_: object) -> None:
            del self._alive[key]
            forget()

        self._alive[key] = weakref.ref(storage, died)


def peak_memory(make: Callable[[], Side]) -> int:
    """The most bytes that this rank holds in the second step of the side that ``make`` makes."""
    watch, add = Watch(), Shelf.add

    def add_counted(shelf: Shelf, nbytes: int) -> int:
        watch.grow(capacity(nbytes))
        return add(shelf, nbytes)

    with patch.object(Shelf, "add", add_counted), watch:
        side = make()
        side.step()
        watch.restart()
        side.step()
    side.close()
    return watch.peak
