"""One piece of the model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from fullbore.errors import ParameterError
from fullbore.runtime.sharding import check_wrappers


class Stage:
    """Stage ``index`` of ``num_stages``: what runs between two boundaries of the pipeline.

    A stage is called with what the stage before returned: a tuple or list is unpacked into
    positional arguments, anything else is the only argument. Keyword arguments of the step go to
    every stage.

    Args:
        module: the piece of the model; its parameters receive the gradients.
        index: which stage, counted from the input.
        num_stages: S, the number of stages of the whole pipeline.
        device: where to move the module, and where its inputs are expected; None leaves it.
        dw_builder: for modules that put off their weights' gradients by themselves. ``I`` then runs
            a whole backward and calls it; what it returns is called, without arguments, by ``W``,
            or right after a full backward.

    Raises:
        ParameterError: ``index`` is out of range, ``module`` is no module, or it is wrapped in a
            way that would give wrong gradients.
    """

    __slots__ = ("device", "dw_builder", "index", "module", "num_stages")

    def __init__(
        self,
        module: nn.Module,
        index: int,
        num_stages: int,
        *,
        device: torch.device | str | None = None,
        dw_builder: Callable[[], Callable[[], object]] | None = None,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise ParameterError(
                f"stage {index}: the module must be a torch.nn.Module, got a "
                f"{type(module).__qualname__}; wrap a function in one"
            )
        if not {type(index), type(num_stages)} <= {int}:
            raise ParameterError(
                f"a stage's index and num_stages must be whole numbers, got {index!r} of "
                f"{num_stages!r}"
            )
        if not 0 <= index < num_stages:
            raise ParameterError(f"stage index {index} is not in 0..{num_stages - 1}")
        check_wrappers(module, index)
        self.module = module if device is None else module.to(device)
        self.index, self.num_stages, self.dw_builder = index, num_stages, dw_builder
        self.device = None if device is None else torch.device(device)

    def __repr__(self) -> str:
        return f"Stage({self.index} of {self.num_stages}: {type(self.module).__name__})"
