"""A batch, cut into microbatches in the controller, and each process's part of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fullbore.controller.host import Request
from fullbore.errors import ParameterError
from fullbore.ir import Placement
from fullbore.runtime.microbatch import Batch, Specs, split_batch
from fullbore.runtime.tree import Tree, tensors


def cut(
    x: Tree,
    y: Tree,
    kwargs: dict[str, Tree],
    *,
    batch_size: int,
    num_microbatches: int,
    specs: Specs,
) -> Batch:
    """The microbatches.

    Args:
        x: the first stage's argument; a tuple is several.
        y: the target.
        kwargs: keyword arguments of every stage.
        batch_size: how many rows there may be.
        num_microbatches: M.
        specs: how to cut what the runtime's rule does not.

    Raises:
        ParameterError: there are more rows than ``batch_size``, or the batch cannot be cut.
    """
    args = x if type(x) is tuple else (x,)
    batch = split_batch(args, kwargs, target=y, num_microbatches=num_microbatches, specs=specs)
    first = next(iter(tensors(args)), None)
    if specs.args is None and first is not None and first.dim() and first.shape[0] > batch_size:
        raise ParameterError(
            f"the batch has {first.shape[0]} rows, and batch_size is {batch_size}; give as many at "
            "most, or another batch_size"
        )
    return batch


def share(
    batch: Batch,
    placement: Placement,
    processes: Sequence[Collection[int]],
    *,
    return_outputs: bool,
    options: Mapping[str, Any],
) -> list[tuple[Request]]:
    """What each process needs of the batch: the first stage's its arguments, the last stage's its
    targets, all the keyword arguments."""
    first, last = placement.ranks[0], placement.ranks[-1]
    weights = batch.weights or (1 / len(batch.args),) * len(batch.args)
    has_kwargs = any(batch.kwargs)
    requests = []
    for ranks in processes:
        args = batch.args if first in ranks else None
        targets = batch.targets if last in ranks else None
        # A process without anything must still hear how many microbatches it is not given.
        kwargs = batch.kwargs if has_kwargs or not args else None
        requests.append((Request(args, kwargs, targets, weights, return_outputs, options),))
    return requests
