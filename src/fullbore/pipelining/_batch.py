"""What ``step`` and ``eval`` are given, as the runtime takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fullbore.errors import ParameterError
from fullbore.pipelining.microbatch import (
    row_weights,
    split_args_kwargs_into_chunks,
    split_target_into_chunks,
)
from fullbore.runtime.tree import Tree

Presplit = tuple[list[Any] | None, list[Any] | None, list[Any] | None]
Whole = tuple[tuple[Tree, ...], dict[str, Tree], Tree]


class Microbatches(NamedTuple):
    """Microbatches by the names that ``Pipeline.step`` has for them, and each one's weight."""

    arg_mbs: list[tuple[Tree, ...]]
    kwarg_mbs: list[dict[str, Tree]]
    target_mbs: list[Tree] | None
    weights: tuple[float, ...]


def prepare(
    whole: Whole,
    presplit: Presplit,
    *,
    count: int,
    specs: tuple[Any, Mapping[str, Any] | None],
) -> Microbatches:
    """Cut a batch into ``count`` microbatches, or take those that the caller has cut.

    A microbatch weighs its share of the rows, or 1 / ``count`` if the caller cut it.

    Raises:
        ParameterError: both are given, or not as many microbatches as there must be.
        TypeError: microbatches are not in a list.
    """
    args, kwargs, target = whole
    if all(given is None for given in presplit):
        return _cut(args, kwargs, target, count=count, specs=specs)
    if args or kwargs or target is not None:
        raise ParameterError(
            "give either a whole batch (args, kwargs, target) or microbatches (arg_mbs, kwarg_mbs, "
            "target_mbs), not both"
        )
    for name, value in zip(("arg_mbs", "kwarg_mbs", "target_mbs"), presplit, strict=True):
        if value is not None:
            _check_list(name, value, count)
    arg_mbs, kwarg_mbs, target_mbs = presplit
    return Microbatches(
        [()] * count if arg_mbs is None else [_as_tuple(args) for args in arg_mbs],
        [{} for _ in range(count)] if kwarg_mbs is None else [named or {} for named in kwarg_mbs],
        target_mbs,
        (1 / count,) * count,
    )


def check_losses(losses: object) -> None:
    """Make sure that losses can be put in ``losses``.

    Raises:
        TypeError: it is no list.
    """
    if losses is not None and not isinstance(losses, list):
        raise TypeError(f"losses: a list is needed to be filled, not a {type(losses).__name__}")


def _cut(
    args: tuple[Tree, ...],
    kwargs: dict[str, Tree],
    target: Tree,
    *,
    count: int,
    specs: tuple[Any, Mapping[str, Any] | None],
) -> Microbatches:
    # Ranks that are given no arguments need not fit the specs.
    args_spec, kwargs_spec = specs[0] if args else None, specs[1] if kwargs else None
    arg_mbs, kwarg_mbs = split_args_kwargs_into_chunks(args, kwargs, count, args_spec, kwargs_spec)
    if len(arg_mbs) != count:
        raise ParameterError(
            f"the batch gives {len(arg_mbs)} microbatches instead of {count}: a tensor has fewer "
            "rows than that; give it the chunk spec _Replicate() to hand it to each one whole"
        )
    weights = row_weights(args, kwargs, target, chunks=count, specs=(args_spec, kwargs_spec))
    return Microbatches(
        arg_mbs,
        kwarg_mbs,
        None if target is None else split_target_into_chunks(target, count),
        (1 / count,) * count if weights is None else weights,
    )


def _as_tuple(args: Any) -> tuple[Tree, ...]:
    if isinstance(args, list | tuple):
        return tuple(args)
    return (args,)


def _check_list(name: str, value: object, count: int) -> None:
    if not isinstance(value, list):
        raise TypeError(f"{name}: a list is needed, not a {type(value).__name__}")
    if len(value) != count:
        raise ParameterError(f"{name}: {count} microbatches are needed, and {len(value)} given")
