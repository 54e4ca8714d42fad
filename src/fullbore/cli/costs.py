"""``--costs``: a file, or numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fullbore.errors import FormatError, FullboreError
from fullbore.ir import Schedule
from fullbore.sim import Costs, load_costs, parse_costs


def _costs(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Costs | None:
    if value is None:
        return None
    try:
        is_file = Path(value).suffix.lower() == ".json"
        return load_costs(value) if is_file else parse_costs(value)
    except FullboreError as error:
        raise click.BadParameter(str(error)) from error


def costs_of_plan(source: str) -> Costs | None:
    """The costs in a plan's file; None if ``source`` is no such file."""
    if Path(source).suffix.lower() != ".json":
        return None
    try:
        return load_costs(source)
    except FormatError:
        return None  # a schedule alone


def costs_option(default: str) -> Callable[[Any], Any]:
    """The option; ``default`` says in words what holds without it."""
    return click.option(
        "--costs",
        callback=_costs,
        metavar="F,I,W[,LATENCY]|FILE",
        help="What a rank's forward, input gradient and weight gradient of one microbatch take, "
        f"and a message; or a .json file of costs by stage.  [default: {default}]",
    )


def describe(costs: Costs, schedule: Schedule) -> str:
    """The costs by stage, in a line."""
    table = costs.table(schedule.placement)
    rows = [(name, getattr(table, name)) for name in ("F", "I", "W", "B")]
    texts = [f"{name} {_range(values)}" for name, values in rows]
    if table.latency:
        texts.append("latency " + _range(_values(table.latency)))
    if table.bandwidth is not None:
        texts.append("bandwidth " + _range(_values(table.bandwidth)))
    unit = f" ({table.unit})" if table.unit else ""
    return "costs of a stage: " + ", ".join(texts) + unit


def _values(value: object) -> tuple[float, ...]:
    return tuple(value.values()) if isinstance(value, dict) else (value,)  # type: ignore[return-value]


def _range(values: tuple[float, ...]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
