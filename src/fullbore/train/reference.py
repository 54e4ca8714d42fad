"""The unpipelined model: one process, plain modules, a plain loop over the microbatches.

Nothing of ``fullbore.runtime`` is imported here: what a pipeline computes is compared with this.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fullbore.train.model import build_model, loss_fn
from fullbore.train.optimizer import Optimizer
from fullbore.train.settings import Recipe


class Reference:
    """The whole model and its optimizer.

    Args:
        recipe: what is trained, and how.
        num_microbatches: M.
        device: where.
    """

    def __init__(self, recipe: Recipe, num_microbatches: int, *, device: torch.device) -> None:
        self._model = build_model(recipe.size, seed=recipe.seed, device=device)
        self._num_microbatches = num_microbatches
        self.optimizer = Optimizer([self._model], recipe)

    def backward(self, inputs: Tensor, target: Tensor) -> list[Tensor]:
        """Add the gradients of one batch to the parameters; the loss of each microbatch.

        Each loss counts for its share of the rows.
        """
        losses = []
        for x, y in zip(
            inputs.tensor_split(self._num_microbatches),
            target.tensor_split(self._num_microbatches),
            strict=True,
        ):
            loss = loss_fn(self._model(x), y)
            torch.autograd.backward(len(x) / len(inputs) * loss)
            losses.append(loss.detach())
        return losses
