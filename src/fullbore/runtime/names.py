"""The names of a stage's parameters, as if nothing were wrapped around its modules."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fullbore.runtime.stage import Stage

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


def bare_module(stage: Stage) -> nn.Module:
    """The stage's module, within DDP where that is around it."""
    module = stage.module
    return module.module if isinstance(module, DistributedDataParallel) else module


def plain_name(name: str) -> str:
    """A name without what torch.compile and checkpoint wrappers put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def find_parameter(stage: Stage, name: str) -> nn.Parameter | None:
    """The parameter of this plain name."""
    module = bare_module(stage)
    try:
        return module.get_parameter(name)
    except AttributeError:
        named = module.named_parameters(remove_duplicate=False)
        return next((p for full, p in named if plain_name(full) == name), None)
