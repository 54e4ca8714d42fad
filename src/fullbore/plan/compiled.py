"""Compiles the planner's loops with numba, where it is installed. Without it they run as they are:
slower, with the same results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple


class Loops(NamedTuple):
    """Functions by name, and what makes what they take as numbers of a list."""

    functions: dict[str, Callable[..., Any]]
    numbers: Callable[[list[Any]], Any]
    compiled: bool


def has_compiler() -> bool:
    """Whether numba is installed."""
    return find_spec("numba") is not None


def loops(functions: Iterable[Callable[..., Any]], *, compiled: bool | None = None) -> Loops:
    """The functions, compiled if they can be.

    Compiled code is kept in the user's cache folder, ``FULLBORE_CACHE_DIR`` or ``fullbore`` in
    ``XDG_CACHE_HOME`` or ``~/.cache``, so that only the first use takes a few seconds.

    Args:
        functions: of one module, in the order in which they use each other.
        compiled: False runs them as they are; by default they are compiled if numba is there.
    """
    given = {function.__name__: function for function in functions}
    if not (has_compiler() if compiled is None else compiled):
        return Loops(given, list, compiled=False)
    numba, numpy = import_module("numba"), import_module("numpy")
    first = next(iter(given.values()))
    # The functions find each other by name; copies find the compiled ones.
    names: dict[str, Any] = dict(first.__globals__)
    kept, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(_cache())
    try:
        for name, function in given.items():
            copy = FunctionType(function.__code__, names, name)
            copy.__module__ = function.__module__
            names[name] = numba.njit(cache=True, inline="always", error_model="numpy")(copy)
    finally:
        numba.config.CACHE_DIR = kept
    return Loops({name: names[name] for name in given}, numpy.array, compiled=True)


def _cache() -> Path:
    chosen = os.environ.get("FULLBORE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fullbore" / "numba"
