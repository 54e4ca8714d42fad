"""``fullbore convert``."""

from __future__ import annotations

import click

from fullbore.cli.help import examples
from fullbore.cli.output import format_option, to_dialect_option, write
from fullbore.cli.source import load_file, microbatches_option, placement_option
from fullbore.formats import DIALECTS
from fullbore.ir import Placement


@click.command(
    epilog=examples(
        "fullbore convert mine.csv mine.json",
        "fullbore convert theirs.csv ours.csv --from-dialect monarch",
        "fullbore convert mine.json --format csv --to-dialect monarch",
    )
)
@click.argument("source", metavar="IN", type=click.Path(exists=True, dir_okay=False))
@click.argument("target", metavar="[OUT]", required=False)
@click.option(
    "--from-dialect",
    type=click.Choice([*DIALECTS]),
    default="torch",
    show_default=True,
    help="What IN is written in, if it is CSV or text.",
)
@to_dialect_option
@placement_option
@microbatches_option
@format_option("txt")
def convert(
    source: str,
    target: str | None,
    *,
    from_dialect: str,
    to_dialect: str,
    placement: Placement | None,
    microbatches: int | None,
    format_: str,
) -> None:
    """Change the format or the dialect of a schedule file.

    The endings say the formats: .csv (actions only), .json and .txt (with placement, form and
    name). What a CSV leaves open is inferred, or given with --placement and --microbatches.
    Without OUT the result is printed.
    """
    found = load_file(
        source, dialect=from_dialect, placement=placement, num_microbatches=microbatches
    )
    write(found, target, format_=format_, dialect=to_dialect)
