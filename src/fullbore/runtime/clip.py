"""Gradient clipping by the norm of the whole model, whose parts are on different ranks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from fullbore.runtime.pipeline import Pipeline


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,  # noqa: FBT001, FBT002 - as in torch
    foreach: bool | None = None,  # noqa: FBT001 - as in torch
    *,
    pipeline: Pipeline,
) -> Tensor:
    """``torch.nn.utils.clip_grad_norm_`` with the norm over all stages of all ranks.

    Every rank calls it after ``step()``, also one whose stages have no parameters, which adds
    nothing to the norm. A parameter that several stages share counts once, in one process and, if
    the pipeline was told (``Pipeline(tied=...)``), in several.

    Args:
        parameters: of all stages of this process.
        max_norm: gradients are scaled down to this norm where theirs is larger.
        norm_type: p of the p-norm; ``inf`` for the largest absolute value.
        error_if_nonfinite: raise if the norm is infinite or no number; no gradient is changed then.
        foreach: see torch.
        pipeline: that the parameters belong to.

    Returns:
        The norm before clipping, the same number on every rank: a scalar tensor on the device of
        this rank's first gradient. Gradients sharded by FSDP2 (``DTensor``) add up to their whole.

    Raises:
        RuntimeError: the norm is not finite, and ``error_if_nonfinite`` was given; on every rank.
        ExecutionError: another rank failed, or does not clip.
    """
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    distinct = {id(p): p for p in given if p.grad is not None}.values()
    norm_type = float(norm_type)
    counted = [p for p in distinct if not pipeline.tied.is_copy(p)]
    own = [_norm(group, norm_type, foreach=foreach) for group in _alike(counted)]
    gathered = pipeline.all_gather(torch.stack(own) if own else torch.zeros(0, dtype=torch.double))
    is_double = any(p.dtype in (torch.float64, torch.complex128) for p in distinct)
    total = _combine(torch.cat(gathered), norm_type).to(
        torch.float64 if is_double else torch.float32
    )
    if error_if_nonfinite and not bool(total.isfinite()):
        raise RuntimeError(
            f"the gradients' norm of order {norm_type:g} over the whole pipeline is {float(total)} "
            "and cannot be clipped to; leave error_if_nonfinite out to go on all the same"
        )
    for group in _alike(distinct):
        clip_grads_with_norm_(group, max_norm, total, foreach)
    first = next(iter(distinct), None)
    return total if first is None or first.grad is None else total.to(first.grad.device)


def _alike(parameters: Iterable[Tensor]) -> list[list[Tensor]]:
    """Groups that one call of torch's can treat: plain tensors, and the DTensors of each mesh."""
    groups: dict[object, list[Tensor]] = {}
    for parameter in parameters:
        groups.setdefault(getattr(parameter.grad, "device_mesh", None), []).append(parameter)
    return list(groups.values())


def _norm(parameters: list[Tensor], norm_type: float, *, foreach: bool | None) -> Tensor:
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = get_total_norm(gradients, norm_type, False, foreach)
    whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole.detach().to("cpu", torch.double)


def _combine(norms: Tensor, norm_type: float) -> Tensor:
    """The norm of the parts' norms, which are the same on all ranks, in the same order."""
    if not len(norms):
        return torch.zeros((), dtype=torch.double)
    # The norm of order 0 counts.
    return norms.sum() if norm_type == 0 else torch.linalg.vector_norm(norms, norm_type)
