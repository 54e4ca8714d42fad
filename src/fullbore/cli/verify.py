"""``fullbore verify``."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict

import click

from fullbore.cli.help import examples
from fullbore.cli.output import echo_json, json_option, size_of
from fullbore.cli.source import Request, source_options
from fullbore.verify import MODELS
from fullbore.verify import verify as find
from fullbore.view.blocks import count


@click.command(
    epilog=examples(
        "fullbore verify mine.csv",
        "fullbore verify mine.csv --model buffered --json",
        "fullbore verify dualpipev --ranks 4 --microbatches 10",
    )
)
@click.argument("schedule")
@source_options
@click.option(
    "--model",
    type=click.Choice([*MODELS]),
    default="rendezvous",
    show_default=True,
    help="How transfers block. rendezvous: a send and its receive block until matched, one queue "
    "a rank pair. per_edge: one queue a direction. buffered: a send never blocks.",
)
@json_option
def verify(schedule: str, request: Request, *, model: str, as_json: bool) -> None:
    """Print everything that is wrong with a schedule, one finding a line.

    Exit code 1 if there is any error; notes are no errors.
    """
    found = request.read(schedule)
    findings = find(found, model=model)
    counts = Counter(finding.severity for finding in findings)
    if as_json:
        echo_json(
            {
                "schedule": size_of(found),
                "model": model,
                "valid": not counts["error"],
                "findings": [asdict(finding) for finding in findings],
            }
        )
    else:
        for finding in findings:
            click.echo(str(finding))
        verdict = "not valid" if counts["error"] else "valid"
        numbers = ", ".join(count(counts[kind], kind) for kind in ("error", "note") if counts[kind])
        click.echo(
            f"{schedule}: {verdict} ({numbers or 'no findings'}; "
            f"{count(found.num_actions, 'action')}, {model} transfers)"
        )
    sys.exit(1 if counts["error"] else 0)
