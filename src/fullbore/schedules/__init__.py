"""Schedule families: ``build`` makes a schedule from a name and its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Never

from fullbore.errors import ParameterError
from fullbore.ir import Placement, Schedule
from fullbore.schedules import (
    dora,
    dora_dfs,
    dualpipev,
    forward_only,
    gis,
    gpipe,
    interleaved_1f1b,
    interleaved_zero_bubble,
    looped_bfs,
    one_f_one_b,
    v_half,
    v_min,
    zb,
    zb_h1,
    zb_h2,
    zbv_greedy,
    zbv_zero_bubble,
)
from fullbore.schedules.costs import StageCosts, stage_costs
from fullbore.schedules.discovery import normal, plugins, spellings
from fullbore.schedules.family import MOST_FORWARDS, Build, Family, Shape

if TYPE_CHECKING:
    from fullbore.sim import Costs

__all__ = [
    "FAMILIES",
    "Build",
    "Family",
    "Shape",
    "StageCosts",
    "build",
    "families",
    "find",
    "parse",
    "resolve",
]

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
            zb.FAMILY,
            zbv_greedy.FAMILY,
            gis.FAMILY,
            v_half.FAMILY,
            v_min.FAMILY,
            dora.FAMILY,
            dora_dfs.FAMILY,
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
    costs: Costs | None = None,
    memory: float | None = None,
    **options: int,
) -> Schedule:
    """The schedule of a family, in compute form.

    Args:
        name: a family's name or alias, in any case: ``zbv_zero_bubble``, ``zbv``,
            ``ScheduleZBVZeroBubble``. Options may follow, as in ``gis:group_size=4``.
        num_ranks: P, from 1 to 3,000.
        num_microbatches: M, at least 1; every M is legal for every family, up to ten million
            pairs of a stage and a microbatch.
        stages_per_rank: V. Looping families take any (default 2), ``forward_only`` as well
            (default 1); the other families have only one choice.
        placement: which rank holds which stage. Only ``forward_only`` has a choice.
        costs: what to arrange the order for, such as ``UniformCosts`` of ``fullbore.sim``. Only
            ``zb`` and ``zbv_greedy`` take them; F = I = W unless given.
        memory: what a rank may hold in bytes, but for messages on their way, for families that take
            costs.
        options: what the family leaves open besides: ``round_size`` of ``interleaved_1f1b``,
            ``group_size`` of ``gis``, ``limit`` of ``zb`` and ``zbv_greedy``.

    Raises:
        ParameterError: no such family, or it does not take these parameters.
    """
    if misplaced:
        raise ParameterError(
            "build: give the numbers by name: "
            f"build({name!r}, num_ranks={num_ranks}, num_microbatches={num_microbatches})"
        )
    family, chosen = parse(name, options)
    where = family.place(num_ranks, stages_per_rank, placement)
    microbatches = family.count(
        "num_microbatches", num_microbatches, most=max(1, MOST_FORWARDS // where.num_stages)
    )
    parameters = [("num_ranks", where.num_ranks), ("num_microbatches", microbatches)]
    if where.shape != "custom":
        parameters.append(("stages_per_rank", where.num_stages // where.num_ranks))
    return replace(
        family.build(where, microbatches, **chosen, **_costs(family, where, costs, memory)),
        name=family.name,
        parameters=(*parameters, *chosen.items()),
    )


def _costs(
    family: Family, placement: Placement, costs: Costs | None, memory: float | None
) -> dict[str, StageCosts]:
    if costs is None and memory is None:
        return {}
    if not family.uses_costs:
        raise ParameterError(
            f"{family.name}: its order does not depend on costs or memory; leave them out, or use "
            "zb or zbv_greedy"
        )
    if memory is not None and not (costs and any(costs.table(placement).activation_bytes)):
        raise ParameterError(
            "memory: bytes are known from costs that say what activations take, activation_bytes; "
            "give these, or leave memory out"
        )
    return {"costs": stage_costs(placement, costs, memory)}


def families() -> Mapping[str, Family]:
    """All families by name: fullbore's own, then those that other packages install.

    Raises:
        ParameterError: an installed one cannot be loaded; the message names it.
    """
    installed, errors = plugins(FAMILIES)
    if errors:
        raise errors[0]
    return MappingProxyType({**FAMILIES, **{family.name: family for family in installed}})


def parse(text: str, options: Mapping[str, int] | None = None) -> tuple[Family, dict[str, int]]:
    """The family that a text means, and its options: ``zb`` or ``zb:limit=16``, several options
    with commas between them.

    Args:
        text: the family's name or alias, and perhaps options.
        options: more of them.

    Raises:
        ParameterError: there is no such family, it does not have the options, one is no whole
            number from 1 on, or one is given twice.
    """
    name, colon, rest = _string(text).partition(":")
    family = find(name)
    written = _written(family, rest) if colon else []
    given = [*written, *(options or {}).items()]
    if len(dict(given)) < len(given):
        raise ParameterError(f"{family.name}: an option is given twice: {text!r}")
    return family, family.chosen(dict(given))


def _written(family: Family, text: str) -> list[tuple[str, int]]:
    example = next(iter(family.options), None)
    found = []
    for part in text.split(","):
        option, _, number = part.partition("=")
        if not (number.isascii() and number.isdecimal() and len(number) < 20):
            raise ParameterError(
                f"{family.name}: options are written as name=number, with commas between them; "
                f"got {text!r}. "
                + (f"Write {family.name}:{example}=4" if example else "It has none")
            )
        found.append((option, int(number)))
    return found


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
    own = _among(FAMILIES.values(), _string(name))
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


def _string(name: str) -> str:
    if not isinstance(name, str):
        raise ParameterError(f"schedule: the name of a family is a string; got {name!r}")
    return name


def _among(candidates: Iterable[Family], name: str) -> Family | None:
    wanted = normal(name)
    return next((family for family in candidates if wanted in spellings(family)), None)
