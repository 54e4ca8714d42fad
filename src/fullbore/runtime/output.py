"""What a step gives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fullbore.runtime.microbatch import merge
from fullbore.runtime.tree import Tree


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step gives, on the rank of the last stage; None elsewhere and where not asked for.

    Attributes:
        losses: the loss of each microbatch, unweighted, by microbatch; detached scalars. On every
            rank with ``share_loss=True``.
        outputs: the last stage's output for each microbatch, by microbatch.
        weights: what each microbatch's loss counted for, on the rank of the last stage.
    """

    losses: tuple[Tensor, ...] | None
    outputs: tuple[Tree, ...] | None
    weights: tuple[float, ...]

    @property
    def loss(self) -> Tensor | None:
        """The weighted sum of the losses: with default weights, the mean over the batch's rows."""
        if self.losses is None:
            return None
        terms = (w * loss for w, loss in zip(self.weights, self.losses, strict=True))
        return torch.stack(list(terms)).sum()

    @property
    def output(self) -> Tree:
        """The outputs put together along dim 0.

        Raises:
            ParameterError: they cannot be put together.
        """
        return None if self.outputs is None else merge(self.outputs)
