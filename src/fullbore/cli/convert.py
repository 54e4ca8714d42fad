"""``fullbore convert``."""

from __future__ import annotations

import click

from fullbore.cli.help import examples
from fullbore.cli.output import format_option, to_dialect_option, write
from fullbore.cli.source import load_file
from fullbore.formats import DIALECTS


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
@format_option("txt")
def convert(
    source: str, target: str | None, *, from_dialect: str, to_dialect: str, format_: str
) -> None:
    """Change the format or the dialect of a schedule file.

    The endings say the formats: .csv (actions only), .json and .txt (with placement, form and
    name). Without OUT the result is printed.
    """
    write(load_file(source, dialect=from_dialect), target, format_=format_, dialect=to_dialect)
