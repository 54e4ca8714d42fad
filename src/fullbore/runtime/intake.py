"""How a pipeline takes its batches: cut here or by the caller, and weighed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from typing import Any, NamedTuple

from fullbore.errors import ParameterError
from fullbore.runtime.compute import scaled
from fullbore.runtime.custom import LossFn, Run
from fullbore.runtime.microbatch import Batch, Specs, presplit_batch, split_batch
from fullbore.runtime.tree import Tree, tensors

Presplit = tuple[Sequence[Tree] | None, Sequence[Mapping[str, Tree]] | None, Sequence[Tree] | None]
"""Positional arguments, keyword arguments and targets by microbatch, if the caller has cut them."""


class Given(NamedTuple):
    """What a step is given; see ``Pipeline.step`` for what each one means."""

    args: tuple[Tree, ...] = ()
    kwargs: dict[str, Tree] = {}  # noqa: RUF012 - nobody changes it
    target: Tree = None
    presplit: Presplit = (None, None, None)
    loss_weights: Sequence[float] | None = None
    loss_scale: float = 1.0
    loss_kwargs: Mapping[str, Any] | None = None
    return_outputs: bool = False
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Intake:
    """What one process of a pipeline knows about batches.

    Attributes:
        num_microbatches: M.
        specs: how to cut what the rule does not.
        scale_grads: whether a microbatch's loss counts for its share of the rows.
        has_first: whether the first stage is here.
        is_alone: whether all ranks are.
    """

    num_microbatches: int
    specs: Specs
    scale_grads: bool
    has_first: bool
    is_alone: bool

    def take(self, given: Given, epoch: int, loss_fn: LossFn, *, has_last: bool) -> Run:
        """What a step runs on.

        Raises:
            ParameterError: the batch cannot be cut or weighed, or lacks something.
        """
        batch = self.cut(given.args, given.kwargs, given.target, given.presplit)
        if has_last and batch.targets is None:
            raise ParameterError("step() needs a target on the rank of the last stage")
        self.check_kwargs(batch)
        shares = self.weigh(batch, given.loss_weights, is_used=has_last)
        return Run(
            batch,
            epoch,
            given.loss_kwargs or {},
            given.return_outputs,
            loss_fn,
            shares,
            scaled(shares, given.loss_scale),
            given.seed,
        )

    def cut(
        self, args: tuple[Tree, ...], kwargs: dict[str, Tree], target: Tree, presplit: Presplit
    ) -> Batch:
        """The microbatches.

        Raises:
            ParameterError: the batch cannot be cut, or is given twice or not at all.
        """
        arg_mbs, kwarg_mbs, target_mbs = presplit
        count = self.num_microbatches
        if arg_mbs is None and kwarg_mbs is None and target_mbs is None:
            if self.has_first and not args and not kwargs:
                raise ParameterError("the rank of the first stage needs the batch's arguments")
            return split_batch(
                args, kwargs, target=target, num_microbatches=count, specs=self.specs
            )
        if args or kwargs or target is not None:
            raise ParameterError("give either a batch or microbatches cut by you, not both")
        if self.has_first and arg_mbs is None and kwarg_mbs is None:
            raise ParameterError("the rank of the first stage needs arg_mbs")
        return presplit_batch(arg_mbs, kwarg_mbs, targets=target_mbs, num_microbatches=count)

    def check_kwargs(self, batch: Batch) -> None:
        """Refuse keyword tensors whose gradient no process would find all of.

        Raises:
            ParameterError: there is one.
        """
        if self.is_alone:
            return
        for key, value in chain.from_iterable(named.items() for named in batch.kwargs):
            if any(tensor.requires_grad for tensor in tensors(value)):
                raise ParameterError(
                    f"keyword argument {key!r} asks for a gradient, of which every rank would find "
                    "a part; pass it to the first stage and from stage to stage, or detach() it"
                )

    def weigh(
        self, batch: Batch, given: Sequence[float] | None, *, is_used: bool
    ) -> tuple[float, ...]:
        """What each microbatch's loss counts for.

        Raises:
            ParameterError: ``given`` has another length than M, or nothing tells the weights where
                they are used.
        """
        count = self.num_microbatches
        if given is not None:
            try:
                weights = tuple(map(float, given))
            except (TypeError, ValueError):
                raise ParameterError(
                    f"loss_weights must hold a number for each of {count} microbatches, got "
                    f"{given!r}"
                ) from None
            if len(weights) != count:
                raise ParameterError(f"loss_weights must hold {count} numbers, got {len(weights)}")
            if not all(map(isfinite, weights)):
                raise ParameterError(f"loss_weights must be finite, got {weights}")
            return weights
        if not self.scale_grads:
            return (1.0,) * count
        if batch.weights is None and is_used and not self.has_first:
            raise ParameterError(
                "the target doesn't tell how many rows a microbatch has, which its loss is weighed "
                "by; pass the positional arguments on this rank too, or loss_weights"
            )
        return batch.weights or (1 / count,) * count
