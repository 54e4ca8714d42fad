"""All that training changes in one process."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from fullbore.runtime.stage import Stage


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a process's stages, by stage.

    Attributes:
        models: parameters and buffers.
        passing: buffers that are not in there, as they are not persistent, by name.
        gradients: of each parameter, by its name in the module.
        trainable: whether each parameter gets one.
        training: the mode of each submodule, by name.
        optimizers: their states.
        generators: the states of the random number generators.
    """

    models: dict[int, dict[str, Any]]
    passing: dict[int, dict[str, Tensor]]
    gradients: dict[int, dict[str, Tensor | None]]
    trainable: dict[int, dict[str, bool]]
    training: dict[int, dict[str, bool]]
    optimizers: dict[int, dict[str, Any]]
    generators: dict[str, Any]


def take(stages: Mapping[int, Stage], optimizers: Mapping[int, Optimizer]) -> Snapshot:
    """A copy of everything."""
    modules = {index: stage.module for index, stage in stages.items()}
    return Snapshot(
        {i: _copy(dict(module.state_dict())) for i, module in modules.items()},
        {i: _copy(_passing(module)) for i, module in modules.items()},
        {i: {n: _copy(p.grad) for n, p in m.named_parameters()} for i, m in modules.items()},
        {i: {n: p.requires_grad for n, p in m.named_parameters()} for i, m in modules.items()},
        {i: {n: part.training for n, part in m.named_modules()} for i, m in modules.items()},
        {i: _copy(optimizer.state_dict()) for i, optimizer in optimizers.items()},
        _generators(),
    )


def restore(
    snapshot: Snapshot, stages: Mapping[int, Stage], optimizers: Mapping[int, Optimizer]
) -> None:
    """Bring it back."""
    for index, stage in stages.items():
        stage.module.load_state_dict(snapshot.models[index])
        for name, buffer in _passing(stage.module).items():
            buffer.data = snapshot.passing[index][name].to(buffer.device, copy=True)
        gradients = snapshot.gradients[index]
        for name, parameter in stage.module.named_parameters():
            parameter.requires_grad_(snapshot.trainable[index][name])
            gradient = gradients[name]
            parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)
        for name, part in stage.module.named_modules():
            part.training = snapshot.training[index][name]
    for index, optimizer in optimizers.items():
        optimizer.load_state_dict(deepcopy(snapshot.optimizers[index]))
    _set_generators(snapshot.generators)


def _passing(module: nn.Module) -> dict[str, Tensor]:
    kept = module.state_dict().keys()
    return {name: buffer for name, buffer in module.named_buffers() if name not in kept}


def _copy(state: Any) -> Any:
    """On the CPU, where there is room for it."""

    def copied(leaf: Any) -> Any:
        return leaf.detach().to("cpu", copy=True) if isinstance(leaf, Tensor) else deepcopy(leaf)

    return pytree.tree_map(copied, state)


def _generators() -> dict[str, Any]:
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_generators(states: Mapping[str, Any]) -> None:
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(states["numpy"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
