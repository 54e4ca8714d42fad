"""The engines by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from fullbore.controller.engine import Engine
from fullbore.controller.local import LocalEngine
from fullbore.controller.opaque import is_monarchs, refuse_device_mesh
from fullbore.errors import ParameterError


def _monarch() -> Engine:
    from fullbore.controller.monarch import MonarchEngine

    return MonarchEngine()


ENGINES: Mapping[str, Callable[[], Engine]] = MappingProxyType(
    {"local": LocalEngine, "monarch": _monarch}
)


def find_engine(engine: str | Engine | None, meshes: Any) -> Engine:
    """An engine, or a new one of this name; None is the one that ``meshes`` are for.

    Raises:
        ParameterError: there is none, or none for ``meshes``.
        MissingExtra: what it needs is not installed.
    """
    each = meshes if isinstance(meshes, list | tuple) else [meshes]
    if engine is None:
        engine = "monarch" if any(map(is_monarchs, each)) else "local"
    if engine == "monarch":
        for mesh in each:
            refuse_device_mesh(mesh)
    if not isinstance(engine, str):
        if isinstance(engine, type) or not hasattr(engine, "place"):
            raise ParameterError(
                f"engine must be one of {', '.join(ENGINES)}, or an engine; got {engine!r}"
            )
        return engine
    if engine not in ENGINES:
        raise ParameterError(f"engine must be one of {', '.join(ENGINES)}; got {engine!r}")
    return ENGINES[engine]()
