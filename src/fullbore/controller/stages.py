"""What a stage of a pipeline may be given as."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import nn

from fullbore.controller.opaque import unwrap
from fullbore.errors import ParameterError
from fullbore.runtime.names import plain_name


@dataclass(frozen=True, init=False)
class Factory:
    """A stage that is built where it lives, so that its weights never pass through the controller.

    ``Factory("package.module.build", 256, seed=3)`` calls ``build(256, seed=3)`` in the rank's
    process; ``build`` is any function or class that gives a ``torch.nn.Module``.

    Args:
        target: the dotted path of what to call, or the callable itself.
        args, kwargs: what to call it with.
    """

    target: str | Callable[..., nn.Module]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __init__(self, target: Any, *args: Any, **kwargs: Any) -> None:
        if not callable(target) and not (isinstance(target, str) and "." in target):
            raise ParameterError(
                "Factory: give the dotted path of a function or class, such as "
                f"'package.module.build', or the function itself; got {target!r}"
            )
        for name, value in (("target", target), ("args", args), ("kwargs", kwargs)):
            object.__setattr__(self, name, value)

    def build(self) -> nn.Module:
        """The module.

        Raises:
            ParameterError: there is nothing of that name, or it gives something else.
        """
        module: object = self._find()(*self.args, **self.kwargs)
        if not isinstance(module, nn.Module):
            raise ParameterError(f"{self} gives a {type(module).__qualname__}, not a module")
        return module

    def _find(self) -> Callable[..., nn.Module]:
        if not isinstance(self.target, str):
            return self.target
        path, _, name = self.target.rpartition(".")
        try:
            found: Callable[..., nn.Module] = getattr(import_module(path), name)
        except (ImportError, AttributeError) as error:
            raise ParameterError(f"{self}: {error}") from error
        return found

    def __str__(self) -> str:
        name = getattr(self.target, "__qualname__", self.target)
        return f"Factory({name})"


StageSource = nn.Module | Factory


def check_stages(stages: Any) -> tuple[StageSource, ...]:
    """The stages, in order; one that is given as a list of one module is that module.

    Raises:
        ParameterError: there is none, or one is no module and no ``Factory``, or lives in a worker
            of Monarch's tensor engine.
    """
    if isinstance(stages, nn.ModuleList):
        stages = list(stages)
    if not isinstance(stages, Sequence) or isinstance(stages, str) or not stages:
        raise ParameterError(f"stages must be a list of one or more stages; got {stages!r}")
    return tuple(_check_stage(stage, index) for index, stage in enumerate(stages))


def tie_shared(
    stages: Sequence[StageSource], process_of: Sequence[int], tied: Sequence[Sequence[str]]
) -> list[Sequence[str]]:
    """``tied``, and the parameters that are one object in stages of several processes: each of
    these gets a copy, whose gradients must be added up.

    Args:
        stages: of the whole model.
        process_of: by stage.
        tied: as for ``runtime.Pipeline``.
    """
    found: dict[nn.Parameter, dict[int, str]] = {}
    for index, stage in enumerate(stages):
        if isinstance(stage, nn.Module):
            for name, parameter in stage.named_parameters():
                own = f"{index}.{plain_name(name)}"
                found.setdefault(parameter, {}).setdefault(process_of[index], own)
    known = {name for group in tied for name in group}
    groups = [tuple(names.values()) for names in found.values() if len(names) > 1]
    return [*tied, *(group for group in groups if known.isdisjoint(group))]


def _check_stage(stage: Any, index: int) -> StageSource:
    if isinstance(stage, list | tuple) and len(stage) == 1:
        (stage,) = stage
    stage = unwrap(stage)
    if isinstance(stage, str):
        stage = Factory(stage)
    if isinstance(stage, nn.Module | Factory):
        return stage
    if isinstance(stage, list | tuple):
        raise ParameterError(
            f"stage {index} is a list of {len(stage)}; give one module, such as "
            "torch.nn.Sequential(*modules)"
        )
    raise ParameterError(
        f"stage {index} is a {type(stage).__qualname__}; give a torch.nn.Module, or "
        "Factory('package.module.build', ...) to build it where it lives"
    )
