"""The engines by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from fullbore.controller.engine import Engine
from fullbore.controller.local import LocalEngine
from fullbore.errors import ParameterError


def _monarch() -> Engine:
    from fullbore.controller.monarch import MonarchEngine

    return MonarchEngine()


ENGINES: Mapping[str, Callable[[], Engine]] = MappingProxyType(
    {"local": LocalEngine, "monarch": _monarch}
)


def find_engine(engine: str | Engine) -> Engine:
    """An engine, or a new one of this name.

    Raises:
        ParameterError: there is none.
        MissingExtra: what it needs is not installed.
    """
    if not isinstance(engine, str):
        return engine
    if engine not in ENGINES:
        raise ParameterError(f"engine must be one of {', '.join(ENGINES)}; got {engine!r}")
    return ENGINES[engine]()
