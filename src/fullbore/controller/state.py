"""The unsplit model's state, in parts and as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fullbore.errors import ParameterError

Shapes = Mapping[str, tuple[int, ...]]


def merge(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """All that the processes have, by name.

    Raises:
        ParameterError: two of them have different tensors of one name.
    """
    found: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if name in found and not _are_equal(found[name], value):
                raise ParameterError(
                    f"two stages have different tensors of the name {name}; names= says what a "
                    "stage's parameters are called in the unsplit model"
                )
            found[name] = value
    return found


def parts_of(state: Mapping[str, Any], known: Sequence[Shapes]) -> list[dict[str, Any]]:
    """What each process needs of ``state``."""
    return [{name: state[name] for name in names} for names in known]


def check_state(state: Mapping[str, Any], known: Sequence[Shapes]) -> None:
    """Guard of loading.

    Raises:
        ParameterError: something is missing in ``state``, of another shape, or in no stage.
    """
    shapes = {name: shape for part in known for name, shape in part.items()}
    missing, strange = shapes.keys() - state.keys(), state.keys() - shapes.keys()
    if missing:
        raise ParameterError(
            f"the state has no {min(missing)}; are the names those of the unsplit model? names= "
            "says what a stage's parameters are called there"
        )
    if strange:
        raise ParameterError(f"no stage has {min(strange)}, which the state holds")
    for name, shape in shapes.items():
        if isinstance(state[name], Tensor) and tuple(state[name].shape) != shape:
            raise ParameterError(
                f"{name} has the shape {shape} here, and {tuple(state[name].shape)} in the state"
            )


def _are_equal(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same = (one.shape, one.dtype) == (other.shape, other.dtype)
        # By their bits: a NaN is not equal to itself.
        return same and (torch.equal(one, other) or torch.equal(_bits(one), _bits(other)))
    return one is other or one == other


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
