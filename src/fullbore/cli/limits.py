"""``--memory`` and ``--stages-per-rank``, where several numbers of stages are tried."""

from __future__ import annotations

import click

from fullbore.errors import ParameterError
from fullbore.plan.memory import Memory, parse_memory


def memory_limit(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> Memory | None:
    """A callback; see ``parse_memory``.

    Raises:
        click.BadParameter: it is no such number.
    """
    if value is None:
        return None
    try:
        return parse_memory(value)
    except ParameterError as error:
        raise click.BadParameter(str(error)) from error


def counts(text: str) -> tuple[int, ...]:
    """Whole numbers from 1 on, as in ``1,2,4``.

    Raises:
        click.BadParameter: they are not.
    """
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = (0,)
    if min(found) < 1:
        raise click.BadParameter(f"{text!r}; give numbers such as 1,2,4", param_hint="-v")
    return found
