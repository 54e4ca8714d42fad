"""A stage module to split the backward of, and what is expected of the split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn


class Calls(nn.Module):
    """A module whose forward is ``function(self, *inputs)``."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, dtype=dtype))


def freeze(module: nn.Module, *parts: str) -> nn.Module:
    """Stop the gradients of all parameters whose name contains one of ``parts``."""
    for name, weight in module.named_parameters():
        if any(part in name for part in parts):
            weight.requires_grad_(False)
    return module


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


@dataclass(frozen=True)
class Case:
    """
    Attributes:
        build: makes the module, given a seed.
        inputs: makes the input of one microbatch.
        waits: how many products each microbatch leaves to W.
        early: the parameters, by name or prefix, whose gradients I computes. ``*`` is all.
        raw: whether floating-point inputs require no grad, as the batch of a first stage.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[], list[Tensor]]
    waits: int
    early: str = ""
    raw: bool = False

    def make(self) -> nn.Module:
        torch.manual_seed(1)
        return self.build()

    def microbatch(self, index: int) -> list[Tensor]:
        torch.manual_seed(100 + index)
        inputs = self.inputs()
        if self.raw:
            return inputs
        return [x.requires_grad_() if x.is_floating_point() else x for x in inputs]

    def is_early(self, name: str) -> bool:
        return any(
            prefix == "*" or name == prefix or name.startswith(f"{prefix}.")
            for prefix in self.early.split()
        )


def x(*shape: int) -> Callable[[], list[Tensor]]:
    """One floating-point input."""
    return lambda: [torch.randn(shape)]


def tokens() -> list[Tensor]:
    """One input of ten ids below eleven."""
    return [torch.randint(11, (2, 5))]


Cases = Mapping[str, Case]
