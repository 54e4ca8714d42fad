"""What ranks do to each other, written down so that one process or several can play it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fullbore.runtime.transport import Edge, Transport

DOWN, UP = (0, 1), (1, 0)
EDGES = (DOWN, UP)


class Step(NamedTuple):
    """One call. What it returns or raises is its result."""

    rank: int
    call: str
    args: tuple[Any, ...] = ()


def send(edge: Edge, tag: int, value: object) -> Step:
    return Step(edge[0], "send", (edge, tag, value))


def post(edge: Edge, tag: int) -> Step:
    return Step(edge[1], "post", (edge, tag))


def recv(edge: Edge, tag: int) -> Step:
    return Step(edge[1], "recv", (edge, tag))


def message(edge: Edge, tag: int, value: object) -> list[Step]:
    return [post(edge, tag), send(edge, tag, value), recv(edge, tag)]


def everywhere(call: str, *args: object) -> list[Step]:
    return [Step(rank, call, args) for rank in (0, 1)]


def play(steps: Sequence[Step], transports: Mapping[int, Transport]) -> dict[int, Any]:
    """The results, by the step's position, of the steps whose ranks are in ``transports``."""
    results = {}
    for position, (rank, call, args) in enumerate(steps):
        if rank in transports:
            results[position] = outcome(getattr(transports[rank], call), args)
    return results


def outcome(call: Callable[..., object], args: tuple[Any, ...]) -> object:
    try:
        return call(*args)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return error


def received(steps: Sequence[Step], results: Mapping[int, Any]) -> list[Any]:
    """The results of the receives, in order."""
    return [results[i] for i, step in enumerate(steps) if step.call == "recv"]


def failures(results: Mapping[int, Any]) -> list[Exception]:
    return [result for result in results.values() if isinstance(result, Exception)]
