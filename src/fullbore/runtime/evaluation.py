"""Evaluation in the middle of training leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Evaluation mode for a while; every submodule gets its own flag back."""
    flags = [(part, part.training) for module in modules for part in module.modules()]
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        # By the method, which a module may have made do more than set the flag; from the outside
        # in, since it sets those of all submodules.
        for part, training in flags:
            if part.training != training:
                part.train(training)
