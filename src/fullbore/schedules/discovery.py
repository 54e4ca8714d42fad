"""Families from other packages, through the entry-point group ``fullbore.schedules``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fullbore.errors import ParameterError
from fullbore.schedules.family import Family

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "fullbore.schedules"


def normal(name: str) -> str:
    """What two spellings of a name have in common: case, ``_``, ``-`` and ``Schedule`` are none."""
    return name.lower().replace("_", "").replace("-", "").removeprefix("schedule")


def spellings(family: Family) -> set[str]:
    """The family's name and aliases in normal form."""
    return set(map(normal, (family.name, *family.aliases)))


def plugins(own: Mapping[str, Family]) -> tuple[list[Family], list[ParameterError]]:
    """The installed families, and what is wrong with those that cannot be used.

    Args:
        own: the families whose names are taken.
    """
    # Costs more than all of fullbore.schedules, and is seldom needed.
    from importlib.metadata import entry_points

    return load(entry_points(group=GROUP), own)


def load(
    points: Iterable[EntryPoint], own: Mapping[str, Family]
) -> tuple[list[Family], list[ParameterError]]:
    """As ``plugins``, for given entry points."""
    taken = {spelling: family.name for family in own.values() for spelling in spellings(family)}
    families: list[Family] = []
    errors: list[ParameterError] = []
    for point in points:
        try:
            family = _load(point, taken)
        except ParameterError as error:
            errors.append(error)
            continue
        families.append(family)
        taken |= dict.fromkeys(spellings(family), family.name)
    return families, errors


def _load(point: EntryPoint, taken: Mapping[str, str]) -> Family:
    label = f"schedule plug-in {point.name!r} ({point.value})"
    try:
        family = point.load()
    except Exception as error:
        raise ParameterError(
            f"{label} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(family, Family):
        raise ParameterError(
            f"{label} must be a fullbore.schedules.Family; it is a {type(family).__name__}"
        )
    clash = next((spelling for spelling in spellings(family) if spelling in taken), None)
    if clash is not None:
        raise ParameterError(f"{label} uses a name that {taken[clash]} has: {clash!r}")
    return family
