"""``fullbore lower``."""

from __future__ import annotations

import click

from fullbore.cli.help import examples
from fullbore.cli.output import format_option, to_dialect_option, write
from fullbore.cli.source import Request, source_options
from fullbore.passes import lower as lowered
from fullbore.passes import run_passes


@click.command(
    epilog=examples(
        "fullbore lower zbv --ranks 4 --microbatches 8",
        "fullbore lower mine.csv --shard --max-active-stages 2 -o lowered.csv",
        'fullbore lower mine.csv --pipeline "merge_backward,insert_communication"',
    )
)
@click.argument("schedule")
@source_options
@click.option(
    "--pipeline",
    metavar="PASSES",
    help="Run these passes instead: names with options in braces, separated by commas.",
)
@click.option("--shard", is_flag=True, help="The stages are sharded: gather, free and reduce them.")
@click.option(
    "--max-active-stages",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many stages a rank keeps gathered; with --shard.  [default: 3]",
)
@click.option("--sink", is_flag=True, help="Receive as late as possible instead of early.")
@click.option("--batch", is_flag=True, help="Pair neighbouring sends and receives.")
@click.option("--output", "-o", metavar="FILE", help="Write to this file instead of printing.")
@to_dialect_option
@format_option("txt")
def lower(
    schedule: str,
    request: Request,
    *,
    pipeline: str | None,
    shard: bool,
    max_active_stages: int | None,
    sink: bool,
    batch: bool,
    output: str | None,
    to_dialect: str,
    format_: str,
) -> None:
    """Add communication, and sharding if wanted, to a schedule of computation.

    The result never deadlocks, however its transfers block; else the command says why it can't.
    """
    found = request.read(schedule)
    if pipeline is not None and (shard or max_active_stages or sink or batch):
        raise click.UsageError(
            "--pipeline says all that is done; give --shard and the like as its passes"
        )
    if max_active_stages and not shard:
        raise click.UsageError("--max-active-stages needs --shard, which gathers stages")
    result = (
        lowered(found, shard=shard, max_active_stages=max_active_stages, sink=sink, batch=batch)
        if pipeline is None
        else run_passes(found, pipeline)
    )
    write(result, output, format_=format_, dialect=to_dialect)
