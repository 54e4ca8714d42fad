"""Where a schedule comes from: a family and its parameters, or a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from fullbore.errors import FormatError, ParameterError
from fullbore.formats import DIALECTS, FORMATS, load
from fullbore.ir import Placement, Schedule
from fullbore.schedules import build, parse, resolve
from fullbore.sim import Costs

Function = TypeVar("Function", bound=Callable[..., Any])

dialect_option = click.option(
    "--dialect",
    type=click.Choice([*DIALECTS]),
    default="torch",
    show_default=True,
    help="What a CSV or text file is written in.",
)


@dataclass(frozen=True, slots=True)
class Request:
    """What the user says about a schedule besides its name or file."""

    ranks: int | None
    microbatches: int | None
    stages_per_rank: int | None
    placement: Placement | None
    dialect: str

    def read(self, source: str, costs: Costs | None = None) -> Schedule:
        """The schedule that ``source`` and the options mean.

        Args:
            source: a family, perhaps with options (``gis:group_size=4``), or a file.
            costs: what a family that takes costs arranges its order by.

        Raises:
            click.UsageError: options are missing, or mean nothing for a file.
            FormatError, ParameterError: as ``load`` and ``build``.
        """
        if is_file(source):
            return self._load(source)
        try:
            family, _ = parse(source)
        except ParameterError as error:
            is_name = ":" not in source
            hint = f"{source!r} is no .csv, .json or .txt file; " if is_name else ""
            raise click.UsageError(f"{hint}{error}") from error
        if self.microbatches is None or (self.ranks is None and self.placement is None):
            raise click.UsageError(
                "a family needs --ranks and --microbatches, as in: "
                f"{source} --ranks 4 --microbatches 8"
            )
        ranks = self.placement.num_ranks if self.ranks is None and self.placement else self.ranks
        assert ranks is not None
        return build(
            source,
            num_ranks=ranks,
            num_microbatches=self.microbatches,
            stages_per_rank=self.stages_per_rank,
            placement=self.placement,
            costs=costs if family.uses_costs else None,
        )

    def _load(self, source: str) -> Schedule:
        if self.ranks is not None or self.stages_per_rank is not None:
            raise click.UsageError(
                f"--ranks and --stages-per-rank are for families; {source} says what it holds"
            )
        return load_file(
            source,
            dialect=self.dialect,
            placement=self.placement,
            num_microbatches=self.microbatches,
        )


def is_file(source: str) -> bool:
    """Whether ``source`` means a file rather than a family."""
    if _ending(source) in FORMATS:
        return True
    if not os.path.isfile(source):  # noqa: PTH113 - Path.is_file raises for a name that is too long
        return False
    # A file of another ending cannot be read, and must not hide the family it is called like.
    try:
        resolve(source)
    except ParameterError:
        return True
    return False


def load_file(source: str, *, dialect: str, **known: Any) -> Schedule:
    """``load``, with the operating system's complaints as ``FormatError``.

    JSON has one dialect, and the user's choice is about the other formats.
    """
    try:
        return load(source, dialect="torch" if _ending(source) == "json" else dialect, **known)
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}", file=source) from error


def _ending(source: str) -> str:
    return Path(source).suffix.lower().removeprefix(".")


def _placement(ctx: click.Context, parameter: click.Parameter, value: str | None) -> object:
    if value is None:
        return None
    try:
        ranks = tuple(map(int, value.split(",")))
    except ValueError:
        raise click.BadParameter(f"{value!r}; give the rank of every stage, as 0,1,1,0") from None
    try:
        return Placement(ranks)
    except ParameterError as error:
        raise click.BadParameter(f"{error}; give the rank of every stage, as 0,1,1,0") from None


placement_option = click.option(
    "--placement",
    callback=_placement,
    metavar="R,R,...",
    help="The rank of every stage, where the family has a choice or a file does not tell.",
)

microbatches_option = click.option(
    "--microbatches", "-m", type=click.IntRange(min=1), metavar="N", help="Microbatches, M."
)


def source_options(command: Function) -> Function:
    """Add the options that a family needs or a file leaves open; the command gets ``request``."""
    positive = click.IntRange(min=1)

    @wraps(command)
    def with_request(**arguments: Any) -> Any:
        taken = {field.name: arguments.pop(field.name) for field in fields(Request)}
        return command(request=Request(**taken), **arguments)

    decorated: Any = with_request
    for option in (
        dialect_option,
        placement_option,
        click.option(
            "--stages-per-rank", "-v", type=positive, metavar="N", help="Stages a rank, V."
        ),
        microbatches_option,
        click.option("--ranks", "-p", type=positive, metavar="N", help="Pipeline ranks, P."),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]
