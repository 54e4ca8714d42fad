"""``--memory`` and ``--stages-per-rank``, where several numbers of stages are tried."""

from __future__ import annotations

import click


def memory_limit(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[float, bool] | None:
    """A callback: the number, and whether it is a multiple of P microbatches' activations.

    Raises:
        click.BadParameter: it is no such number.
    """
    if value is None:
        return None
    number, relative = (value[:-1], True) if value.endswith("x") else (value, False)
    try:
        limit = float(number)
    except ValueError:
        limit = -1.0
    if not 0 < limit < float("inf"):
        raise click.BadParameter(f"{value!r}; give bytes, or 0.75x of what 1F1B holds")
    return limit, relative


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
