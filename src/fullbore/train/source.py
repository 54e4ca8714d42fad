"""Where the schedule and the recipe of a run come from."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fullbore.errors import FormatError, ParameterError
from fullbore.formats import FORMATS, load
from fullbore.ir import Schedule
from fullbore.schedules import build
from fullbore.train.settings import Recipe
from fullbore.verify import check

DEFAULT_RANKS = 2
DEFAULT_MICROBATCHES = 8


def find_schedule(
    source: str, *, ranks: int | None, stages_per_rank: int | None, microbatches: int | None
) -> Schedule:
    """A family's schedule for these numbers, or the one that a file holds.

    Raises:
        ParameterError: there is no such family, it does not take these numbers, or the file holds
            a schedule for others.
        FormatError: the file holds no schedule.
        InvalidSchedule: the file's schedule is not valid.
    """
    path = Path(source)
    if path.suffix.lower().removeprefix(".") not in FORMATS and not path.is_file():
        return build(
            source,
            num_ranks=DEFAULT_RANKS if ranks is None else ranks,
            num_microbatches=DEFAULT_MICROBATCHES if microbatches is None else microbatches,
            stages_per_rank=stages_per_rank,
        )
    try:
        schedule = load(path)
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}", file=source) from error
    schedule = replace(schedule, name=schedule.name or source)
    check(schedule)
    for option, given, held in (
        ("--ranks", ranks, schedule.num_ranks),
        ("--microbatches", microbatches, schedule.num_microbatches),
    ):
        if given is not None and given != held:
            raise ParameterError(f"{option} is {given}, but {source} is for {held}")
    if stages_per_rank is not None:
        raise ParameterError(f"--stages-per-rank is for families; {source} says what it holds")
    return schedule


def find_recipe(saved: Recipe | None, **given: Any) -> Recipe:
    """The recipe that the options mean: what is not given is as in the checkpoint, if there is
    one, else the default.

    Args:
        saved: the checkpoint's.
        given: fields of ``Recipe`` and ``ModelSize``; None where the user said nothing.

    Raises:
        ParameterError: a number makes no sense, or the model would not be the checkpoint's.
    """
    base = Recipe() if saved is None else saved
    sizes = asdict(base.size)
    chosen = {name: value for name, value in given.items() if value is not None}
    for name in sizes.keys() & chosen.keys():
        if saved is not None and chosen[name] != sizes[name]:
            option = name.replace("_", "-")
            raise ParameterError(
                f"--{option} is {chosen[name]}, but the checkpoint's model has {sizes[name]}; "
                f"leave --{option} out"
            )
    size = replace(base.size, **{name: chosen.pop(name) for name in [*chosen] if name in sizes})
    return replace(base, size=size, **chosen)
