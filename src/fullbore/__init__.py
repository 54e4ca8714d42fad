"""Compile, check, cost, plan, draw and run pipeline-parallel schedules for PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING

from fullbore.errors import (
    ExecutionError,
    FormatError,
    FullboreError,
    InvalidSchedule,
    MissingExtra,
    ParameterError,
    PassError,
    PeerFailed,
    TransportError,
    TransportTimeout,
)
from fullbore.ir import Action, Form, Kind, Placement, Schedule

# Not later: the function has the name of its layer, which importing the layer would bind.
from fullbore.verify import Finding, check, verify

if TYPE_CHECKING:
    from fullbore.formats import dumps, load, loads, save
    from fullbore.passes import lower, run_passes
    from fullbore.schedules import FAMILIES, build

__version__ = "0.1.0"

__all__ = [
    "build",
    "verify",
    "check",
    "lower",
    "run_passes",
    "load",
    "loads",
    "save",
    "dumps",
    "Schedule",
    "Action",
    "Kind",
    "Form",
    "Placement",
    "Finding",
    "FAMILIES",
    "FullboreError",
    "FormatError",
    "ParameterError",
    "InvalidSchedule",
    "PassError",
    "MissingExtra",
    "ExecutionError",
    "TransportError",
    "TransportTimeout",
    "PeerFailed",
]

# Fetched from their layers when they are first used: half of what importing fullbore would cost.
_LATER = {
    "formats": ("dumps", "load", "loads", "save"),
    "passes": ("lower", "run_passes"),
    "schedules": ("FAMILIES", "build"),
}


def __getattr__(name: str) -> object:
    layer = next((layer for layer, names in _LATER.items() if name in names), None)
    if layer is None:
        raise AttributeError(f"module 'fullbore' has no attribute {name!r}")
    value = getattr(import_module(f"fullbore.{layer}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
