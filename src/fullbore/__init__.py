"""Compile, check, cost, plan, draw and run pipeline-parallel schedules for PyTorch."""

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
from fullbore.formats import dumps, load, loads, save
from fullbore.ir import Action, Form, Kind, Placement, Schedule
from fullbore.passes import lower, run_passes
from fullbore.schedules import FAMILIES, build
from fullbore.verify import Finding, check, verify

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
