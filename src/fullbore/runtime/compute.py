"""What the actions compute, given a stage and its record of a microbatch."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from torch import Tensor

from fullbore.errors import ParameterError
from fullbore.runtime.backward import SplitBackward, full_backward
from fullbore.runtime.tree import Tree, detach, is_differentiable, tensors
from fullbore.runtime.unit import Record, Unit


def first_input(record: Record, value: Tree) -> Tree:
    """The batch's arguments, cut from the graph that the caller may have built before them."""
    given = tensors(value)
    record.origins = [tensor for tensor in given if tensor.requires_grad]
    record.fed = any(is_differentiable(t) and not t.requires_grad for t in given)
    if not record.origins:
        return value
    value = detach(value)
    record.leaves = [tensor for tensor in tensors(value) if tensor.requires_grad]
    return value


def forward(unit: Unit, record: Record) -> None:
    """F."""
    record.output = unit.stage.module(*record.args, **record.kwargs)


def backward(unit: Unit, record: Record) -> None:
    """B."""
    full_backward(record.roots, record.gradients)
    if unit.stage.dw_builder is not None:
        unit.stage.dw_builder()()


def backward_input(unit: Unit, record: Record) -> None:
    """I. A stage with a ``dw_builder`` runs a whole backward and leaves the rest to it."""
    if unit.stage.dw_builder is not None:
        full_backward(record.roots, record.gradients)
        record.weights = unit.stage.dw_builder()
        return
    split = SplitBackward(record.roots, record.leaves, fed=record.fed)
    split.input_backward(record.gradients)
    record.weights = split.weight_backward


def backward_weight(unit: Unit, record: Record) -> None:
    """W.

    Raises:
        ParameterError: a custom function took the place of I.
    """
    if record.weights is None:
        raise ParameterError(
            f"the custom function for {unit.index}I{record.microbatch} did not run the built-in "
            "I (ctx.run()), so that W has nothing to go by; register a custom function for W too"
        )
    record.weights()


def scaled(weights: Sequence[float], loss_scale: float) -> list[float]:
    """What multiplies each microbatch's gradients.

    Raises:
        ParameterError: the scale would lose them.
    """
    if not 0 < loss_scale < inf:
        raise ParameterError(f"loss_scale must be a positive, finite number; got {loss_scale}")
    return [loss_scale * weight for weight in weights]


def checked_loss(loss: object) -> Tensor:
    """What the loss function returned, if a gradient can start there.

    Raises:
        ParameterError: it cannot.
    """
    if not isinstance(loss, Tensor):
        raise ParameterError(f"loss_fn must return a tensor, got {type(loss).__name__}")
    if loss.numel() != 1:
        raise ParameterError(
            f"loss_fn must return one number, got a tensor of shape {tuple(loss.shape)}; reduce it "
            "(mean or sum) first"
        )
    if loss.is_complex():
        raise ParameterError(f"loss_fn must return a real number, got {loss.dtype}")
    return loss
