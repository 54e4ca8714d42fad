"""What a checkpoint holds of this process's stages, under the names of the unsplit model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.optim import Optimizer

from fullbore.errors import ParameterError
from fullbore.runtime.checksum import checksum
from fullbore.runtime.names import bare_module, plain_name
from fullbore.runtime.stage import Stage

Rename = Callable[[int, str], str]
"""From a stage's index, and a name in its module, to the name in the unsplit model."""

State = dict[str, Any]

_NOT_OPTIONS = {"params", "param_names"}


def model_state(stages: Mapping[int, Stage], rename: Rename, *, compares: bool) -> State:
    """Parameters and buffers by the unsplit model's names.

    Raises:
        ParameterError: two different tensors have the same name, where ``compares`` is set.
    """
    state: State = {}
    for index, stage in stages.items():
        for name, value in bare_module(stage).state_dict().items():
            full = rename(index, plain_name(name))
            if compares and full in state and not _are_equal(state[full], value):
                raise ParameterError(_twice(full))
            state.setdefault(full, value)
    return state


def load_model(stages: Mapping[int, Stage], state: State, rename: Rename) -> None:
    """Give the stages' modules what ``state``, from ``model_state``, now holds."""
    for index, stage in stages.items():
        module = bare_module(stage)
        names = {name: rename(index, plain_name(name)) for name in module.state_dict()}
        module.load_state_dict({name: state[full] for name, full in names.items()})


def fingerprints(state: State) -> dict[str, tuple[int, ...]]:
    """The names, and checksums that tell whether another process has the same under a name."""
    return {
        name: tuple(checksum(value).tolist()) if isinstance(value, Tensor) else ()
        for name, value in state.items()
    }


def check_names(found: Sequence[Mapping[str, tuple[int, ...]]]) -> None:
    """Guard against stages that give different tensors the same name, which would be lost.

    Raises:
        ParameterError: they do.
    """
    seen: dict[str, tuple[int, ...]] = {}
    for part in found:
        for name, numbers in part.items():
            if seen.setdefault(name, numbers) != numbers:
                raise ParameterError(_twice(name))


def optimizer_state(
    stages: Mapping[int, Stage], optimizers: Iterable[Optimizer], rename: Rename
) -> tuple[State, State]:
    """The optimizers' state and each parameter's options (learning rate and so on), by name.

    Raises:
        ParameterError: an optimizer has parameters that are in no stage.
    """
    state: State = {}
    options: State = {}
    for optimizer, group, parameter, name in _parameters(stages, optimizers, rename):
        kept = {key: value for key, value in group.items() if key not in _NOT_OPTIONS}
        # A tuple, which is stored as one thing.
        options[name] = (type(optimizer).__qualname__, *kept.items())
        if optimizer.state.get(parameter):
            state[name] = dict(optimizer.state[parameter])
    return state, options


def empty_optimizer_state(
    stages: Mapping[int, Stage],
    optimizers: Iterable[Optimizer],
    rename: Rename,
    metadata: Metadata,
) -> tuple[State, State]:
    """Room for what the checkpoint has of these optimizers.

    Raises:
        ParameterError: it has nothing of a parameter.
    """
    saved: dict[str, dict[str, Any]] = {}
    for key, found in metadata.state_dict_metadata.items():
        section, _, rest = key.partition(".")
        name, _, field = rest.rpartition(".")
        if section == "optimizer":
            saved.setdefault(name, {})[field] = found
    state: State = {}
    options: State = {}
    for _, _, parameter, name in _parameters(stages, optimizers, rename):
        if f"options.{name}" not in metadata.state_dict_metadata:
            raise ParameterError(f"the checkpoint has no optimizer's state of {name}")
        options[name] = None
        if name in saved:
            state[name] = {f: _room(parameter, found) for f, found in saved[name].items()}
    return state, options


def load_optimizers(
    stages: Mapping[int, Stage],
    optimizers: Iterable[Optimizer],
    rename: Rename,
    *,
    state: State,
    options: State,
) -> None:
    """Give the optimizers what was read.

    Raises:
        ParameterError: it was saved by optimizers of another class, or with options that differ
            within what is one group now.
    """
    names = _names(stages, rename)
    for optimizer in optimizers:
        groups, position = [], 0
        values: dict[int, State] = {}
        for group in optimizer.param_groups:
            own = [names[parameter][0] for parameter in group["params"]]
            if any(options[name] != options[own[0]] for name in own):
                raise ParameterError(
                    f"the parameters {own[0]}, ... are one group of an optimizer now, but were "
                    "saved with different options; make the groups that there were"
                )
            kind, *kept = options[own[0]] if own else (type(optimizer).__qualname__,)
            if kind != type(optimizer).__qualname__:
                raise ParameterError(
                    f"the state of {own[0]} is that of a {kind}, not of a "
                    f"{type(optimizer).__qualname__}"
                )
            places = range(position, position + len(own))
            position += len(own)
            values |= {i: state[name] for i, name in zip(places, own, strict=True) if name in state}
            groups.append({**group, **dict(kept), "params": [*places]})
        optimizer.load_state_dict({"state": values, "param_groups": groups})


def check_complete(state: State, metadata: Metadata) -> None:
    """Compare the names and shapes of parameters and buffers with the checkpoint's.

    Raises:
        ParameterError: one is missing there, or has another shape.
    """
    for name, value in state.items():
        found = metadata.state_dict_metadata.get(f"model.{name}")
        if found is None:
            raise ParameterError(
                f"the checkpoint has no {name}; are the names those of the unsplit model? "
                "rename= says what a stage's parameters are called there"
            )
        if not isinstance(value, Tensor) or not isinstance(found, TensorStorageMetadata):
            continue
        if tuple(value.shape) != tuple(found.size):
            raise ParameterError(
                f"{name} has the shape {tuple(value.shape)}, but {tuple(found.size)} in the "
                "checkpoint"
            )


def _parameters(
    stages: Mapping[int, Stage], optimizers: Iterable[Optimizer], rename: Rename
) -> Iterable[tuple[Optimizer, dict[str, Any], nn.Parameter, str]]:
    """A shared parameter comes once for each of its names."""
    names = _names(stages, rename)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in names:
                    raise ParameterError(
                        f"an optimizer has a parameter of shape {tuple(parameter.shape)} that is "
                        "in no stage of this process"
                    )
                for name in names[parameter]:
                    yield optimizer, group, parameter, name


def _names(stages: Mapping[int, Stage], rename: Rename) -> dict[nn.Parameter, list[str]]:
    names: dict[nn.Parameter, list[str]] = {}
    for index, stage in stages.items():
        for name, parameter in bare_module(stage).named_parameters(remove_duplicate=False):
            names.setdefault(parameter, []).append(rename(index, plain_name(name)))
    return names


def _room(parameter: Tensor, found: object) -> Tensor | None:
    if not isinstance(found, TensorStorageMetadata):
        return None
    dtype = found.properties.dtype
    if tuple(found.size) == tuple(parameter.shape):
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    return torch.empty(found.size, dtype=dtype)


def _are_equal(one: object, other: object) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return one == other
    return one is other or torch.equal(checksum(one), checksum(other))


def _twice(name: str) -> str:
    return (
        f"two stages have different tensors of the name {name}; rename= says what a stage's "
        "parameters are called in the unsplit model"
    )
