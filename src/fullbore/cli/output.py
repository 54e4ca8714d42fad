"""How results reach the terminal, a pipe or a file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from fullbore.errors import FormatError
from fullbore.formats import DIALECTS, FORMATS, dumps, save
from fullbore.ir import Schedule
from fullbore.view.table import render_table

# What pictures use beyond ASCII, for terminals that have nothing else.
PLAIN = str.maketrans({"·": ".", "─": "-"})

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

to_dialect_option = click.option(
    "--to-dialect",
    type=click.Choice([*DIALECTS]),
    default="torch",
    show_default=True,
    help="What to write CSV or text in.",
)


def format_option(default: str) -> Callable[[Any], Any]:
    """``--format``, for what is printed."""
    return click.option(
        "--format",
        "format_",
        type=click.Choice([*FORMATS]),
        default=default,
        show_default=True,
        help="What to print; a file's ending says what to write.",
    )


def check_folder(path: str) -> None:
    """Make sure that a file can be written where ``path`` says, before much work is done for it.

    Raises:
        FormatError: its folder is none, or nothing can be written to it.
    """
    folder = Path(path).parent
    if Path(path).is_dir():
        raise FormatError("cannot be written: it is a folder", file=path)
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        why = "cannot be written to" if folder.is_dir() else "is no folder"
        raise FormatError(f"cannot be written: {folder} {why}", file=path)


def echo_json(value: object) -> None:
    """Print a value as JSON."""
    click.echo(json.dumps(value, indent=2))


def echo_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells, the first one their heads."""
    click.echo(render_table(rows), nl=False)


def wants_color(choice: bool | None) -> bool:  # noqa: FBT001 - an option's value
    """Whether to use colours: what the user chose, else on a terminal that has them."""
    if choice is not None:
        return choice
    if sys.stdout is None or not sys.stdout.isatty():  # it is None where the user closed it
        return False
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def echo_picture(text: str, *, color: bool) -> None:
    """Print text that may hold colours and lines."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = text.translate(PLAIN)
    click.echo(text, color=color)


def write(schedule: Schedule, output: str | None, *, format_: str, dialect: str) -> None:
    """Write a schedule to a file, or print it if there is none.

    Raises:
        FormatError: the file cannot be written, or cannot hold the schedule.
        ParameterError: the file's ending is unknown.
    """
    if output is None:
        click.echo(dumps(schedule, format=format_, dialect=dialect), nl=False)
        return
    try:
        save(schedule, output, dialect=dialect)
    except OSError as error:
        raise FormatError(f"cannot be written: {error.strerror}", file=str(Path(output))) from error


def size_of(schedule: Schedule) -> dict[str, object]:
    """What a report says about a schedule."""
    return {
        "name": schedule.name,
        "form": schedule.form.value,
        "forward_only": schedule.forward_only,
        "num_ranks": schedule.num_ranks,
        "num_stages": schedule.num_stages,
        "num_microbatches": schedule.num_microbatches,
        "num_actions": schedule.num_actions,
        "placement": list(schedule.placement.ranks),
    }
