"""The schedule that the user's words mean."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fullbore.errors import ParameterError
from fullbore.formats import FORMATS, load
from fullbore.ir import Schedule
from fullbore.plan import Plan, PlanFile
from fullbore.runtime.sharding import lower_for
from fullbore.schedules import build

ScheduleSource = str | os.PathLike[str] | Schedule | Plan | PlanFile


def count_microbatches(batch_size: int, microbatch_size: int) -> int:
    """M.

    Raises:
        ParameterError: the batch does not consist of whole microbatches.
    """
    for name, value in (("batch_size", batch_size), ("microbatch_size", microbatch_size)):
        if type(value) is not int or value < 1:
            raise ParameterError(f"{name} must be a whole number from 1 on; got {value!r}")
    if batch_size % microbatch_size:
        raise ParameterError(
            f"batch_size must be a multiple of microbatch_size; got {batch_size} and "
            f"{microbatch_size}"
        )
    return batch_size // microbatch_size


def find_schedule(
    source: ScheduleSource,
    *,
    num_ranks: int,
    num_stages: int,
    num_microbatches: int,
    options: Mapping[str, Any],
) -> Schedule:
    """The schedule, lowered and verified.

    Args:
        source: a family's name, a file, a schedule or a plan.
        num_ranks, num_stages, num_microbatches: what it must be for.
        options: of the family (``round_size``), or of the file (``dialect``).

    Raises:
        ParameterError: it is for other numbers, or there is no such family.
        FormatError: the file holds no schedule.
        InvalidSchedule: it is not valid.
    """
    schedule = _read(source, num_ranks, num_stages, num_microbatches, options)
    found = (schedule.num_ranks, schedule.num_stages, schedule.num_microbatches)
    if found != (num_ranks, num_stages, num_microbatches):
        raise ParameterError(
            f"the schedule has {found[0]} ranks, {found[1]} stages and {found[2]} microbatches; "
            f"there are {num_ranks} ranks, {num_stages} stages and {num_microbatches} microbatches "
            "(batch_size // microbatch_size)"
        )
    return lower_for((), schedule)


def _read(
    source: ScheduleSource,
    num_ranks: int,
    num_stages: int,
    num_microbatches: int,
    options: Mapping[str, Any],
) -> Schedule:
    if isinstance(source, Plan | PlanFile):
        source = source.schedule
    if isinstance(source, Schedule):
        if options:
            raise ParameterError(f"schedule_options are for families and files; got {options}")
        return source
    given: object = source
    if not isinstance(given, str | os.PathLike):
        raise ParameterError(
            f"schedule must be a family's name, a file, a Schedule or a Plan; got {given!r}"
        )
    if isinstance(source, os.PathLike) or Path(source).suffix.lower().removeprefix(".") in FORMATS:
        return load(source, **options)
    if num_stages % num_ranks:
        raise ParameterError(
            f"{num_stages} stages cannot be shared evenly by {num_ranks} ranks, as the family "
            f"{source!r} needs; give a schedule with a placement of its own, or other numbers"
        )
    return build(
        source,
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        stages_per_rank=num_stages // num_ranks,
        **options,
    )
