"""``fullbore list``."""

from __future__ import annotations

import click

from fullbore.cli.help import examples
from fullbore.cli.output import echo_json, echo_table, json_option
from fullbore.schedules import Family
from fullbore.schedules import families as all_families


@click.command(
    "list",
    epilog=examples(
        "fullbore list",
        "fullbore list --json",
    ),
)
@json_option
def families(as_json: bool) -> None:  # noqa: FBT001 - click passes by keyword
    """List the schedule families and their options."""
    found = all_families()
    if as_json:
        echo_json([_facts(family) for family in found.values()])
        return
    rows = [("family", "stages/rank", "placement", "what it is")]
    rows += [
        (family.name, _stages(family), family.shape, family.description)
        for family in found.values()
    ]
    echo_table(rows)
    click.echo("\noptions, written after the name, as in gis:group_size=4:")
    echo_table(
        [
            (f"  {family.name}", option, meaning)
            for family in found.values()
            for option, meaning in family.options.items()
        ]
    )


def _stages(family: Family) -> str:
    default = family.default_stages_per_rank
    return str(default) if family.fixed_stages_per_rank else f"any ({default})"


def _facts(family: Family) -> dict[str, object]:
    return {
        "name": family.name,
        "aliases": list(family.aliases),
        "placement": family.shape,
        "stages_per_rank": family.default_stages_per_rank,
        "fixed_stages_per_rank": family.fixed_stages_per_rank,
        "options": dict(family.options),
        "uses_costs": family.uses_costs,
        "description": family.description,
        "source": family.source,
    }
