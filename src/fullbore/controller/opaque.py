"""Objects of Monarch's tensor engine, which only its own workers can look into."""

from __future__ import annotations

from typing import Any

from fullbore.errors import ParameterError

_INSTEAD = (
    'give the module itself, or fullbore.controller.Factory("package.Class", ...), which builds it '
    "where it is used"
)


def unwrap(given: Any) -> Any:
    """What an ``OpaqueRef`` stands for, in the process that made it; anything else as it is.

    Raises:
        ParameterError: it stands for something in another process, as an ``OpaqueModule`` does.
    """
    kind = type(given)
    if not is_monarchs(given) or kind.__name__ not in ("OpaqueRef", "OpaqueModule"):
        return given
    try:
        return given.value
    except (AttributeError, KeyError, RuntimeError) as error:
        raise ParameterError(
            f"an {kind.__name__} belongs to a worker of Monarch's tensor engine, and cannot be "
            f"looked into here: {_INSTEAD}"
        ) from error


def refuse_device_mesh(mesh: Any) -> None:
    """Raise for a ``DeviceMesh``, whose workers run nothing but the tensor engine.

    Raises:
        ParameterError: it is one.
    """
    if is_monarchs(mesh) and type(mesh).__name__ == "DeviceMesh":
        raise ParameterError(
            "a DeviceMesh belongs to Monarch's tensor engine, which cannot run stages: give the "
            "proc mesh that it was made of, such as this_host().spawn_procs(), or the number of "
            "ranks"
        )


def is_monarchs(given: Any) -> bool:
    """Whether it is an object of a class of Monarch's."""
    return type(given).__module__.partition(".")[0] == "monarch"
