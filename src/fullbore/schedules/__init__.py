"""Schedule families: ``build`` makes a schedule from a name and its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Never

from fullbore.errors import ParameterError
from fullbore.ir import Placement, Schedule
from fullbore.schedules import (
    dualpipev,
    forward_only,
    gis,
    gpipe,
    interleaved_1f1b,
    interleaved_zero_bubble,
    looped_bfs,
    one_f_one_b,
    v_min,
    zb_h1,
    zb_h2,
    zbv_zero_bubble,
)
from fullbore.schedules.discovery import normal, plugins, spellings
from fullbore.schedules.family import MOST_FORWARDS, Build, Family, Shape

__all__ = ["FAMILIES", "Build", "Family", "Shape", "build", "families", "find", "resolve"]

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.name: family
        for family in (
            gpipe.FAMILY,
            one_f_one_b.FAMILY,
            looped_bfs.FAMILY,
            interleaved_1f1b.FAMILY,
            interleaved_zero_bubble.FAMILY,
            zbv_zero_bubble.FAMILY,
            dualpipev.FAMILY,
            zb_h1.FAMILY,
            zb_h2.FAMILY,
            gis.FAMILY,
            v_min.FAMILY,
            forward_only.FAMILY,
        )
    }
)


def build(
    name: str,
    *misplaced: Never,
    num_ranks: int,
    num_microbatches: int,
    stages_per_rank: int | None = None,
    placement: Placement | None = None,
    **options: int,
) -> Schedule:
    """The schedule of a family, in compute form.

    Args:
        name: a family's name or alias, in any case: ``zbv_zero_bubble``, ``zbv``,
            ``ScheduleZBVZeroBubble``.
        num_ranks: P, from 1 to 3,000.
        num_microbatches: M, at least 1; every M is legal for every family, up to ten million
            pairs of a stage and a microbatch.
        stages_per_rank: V. Looping families take any (default 2), ``forward_only`` as well
            (default 1); the other families have only one choice.
        placement: which rank holds which stage. Only ``forward_only`` has a choice.
        options: what the family leaves open besides: ``round_size`` of ``interleaved_1f1b``,
            ``group_size`` of ``gis``.

    Raises:
        ParameterError: no such family, or it does not take these parameters.
    """
    if misplaced:
        raise ParameterError(
            "build: give the numbers by name: "
            f"build({name!r}, num_ranks={num_ranks}, num_microbatches={num_microbatches})"
        )
    family = find(name)
    where = family.place(num_ranks, stages_per_rank, placement)
    microbatches = family.count(
        "num_microbatches", num_microbatches, most=max(1, MOST_FORWARDS // where.num_stages)
    )
    parameters = [("num_ranks", where.num_ranks), ("num_microbatches", microbatches)]
    if where.shape != "custom":
        parameters.append(("stages_per_rank", where.num_stages // where.num_ranks))
    chosen = family.chosen(options)
    return replace(
        family.build(where, microbatches, **chosen),
        name=family.name,
        parameters=(*parameters, *chosen.items()),
    )


def families() -> Mapping[str, Family]:
    """All families by name: fullbore's own, then those that other packages install.

    Raises:
        ParameterError: an installed one cannot be loaded; the message names it.
    """
    installed, errors = plugins(FAMILIES)
    if errors:
        raise errors[0]
    return MappingProxyType({**FAMILIES, **{family.name: family for family in installed}})


def resolve(name: str) -> str:
    """The name of the family that ``name`` means: case, ``_``, ``-`` and ``Schedule`` may differ.

    Raises:
        ParameterError: there is none.
    """
    return find(name).name


def find(name: str) -> Family:
    """The family that ``name`` means, as ``resolve``.

    Raises:
        ParameterError: there is none; the message also names the plug-ins that cannot be loaded.
    """
    if not isinstance(name, str):
        raise ParameterError(f"schedule: the name of a family is a string; got {name!r}")
    own = _among(FAMILIES.values(), name)
    if own is not None:
        return own
    installed, errors = plugins(FAMILIES)
    family = _among(installed, name)
    if family is not None:
        return family
    known = ", ".join([*FAMILIES, *(family.name for family in installed)])
    message = f"schedule: there is no family {name!r}. Choose one of {known}"
    # It may be in a plug-in that does not load.
    raise ParameterError("; ".join([message, *map(str, errors)])) from next(iter(errors), None)


def _among(candidates: Iterable[Family], name: str) -> Family | None:
    wanted = normal(name)
    return next((family for family in candidates if wanted in spellings(family)), None)
