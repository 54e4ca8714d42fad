"""``fullbore profile``."""

from __future__ import annotations

from dataclasses import asdict

import click

from fullbore.cli.costs import costs_option
from fullbore.cli.help import examples
from fullbore.cli.output import echo_json, json_option
from fullbore.cli.source import Request, source_options
from fullbore.errors import FormatError
from fullbore.ir import Form
from fullbore.passes import lower
from fullbore.sim import Costs, Profile, load_profile, load_torch_traces, report, save_costs
from fullbore.view.report import render_report


@click.command(
    epilog=examples(
        "fullbore profile out/profile.json",
        "fullbore profile out/profile.json -o costs.json",
        "fullbore profile rank0.json rank1.json --schedule 1f1b --ranks 2 --microbatches 8",
    )
)
@click.argument("files", nargs=-1, required=True)
@click.option(
    "--schedule",
    help="What ran, if the files are traces of torch's profiler, one a rank.",
)
@source_options
@costs_option("what the profile shows")
@click.option("--output", "-o", metavar="FILE", help="Write the measured costs to this .json file.")
@json_option
def profile(
    files: tuple[str, ...],
    request: Request,
    *,
    schedule: str | None,
    costs: Costs | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Say where the time of measured steps went, and how well costs predict it.

    FILES are a profile that fullbore wrote, or one Chrome trace a rank of torch's profiler.
    """
    measured = _read(files, schedule, request)
    found = report(measured, costs)
    if output is not None:
        try:
            save_costs(measured.costs(), output)
        except OSError as error:
            raise FormatError(f"cannot be written: {error.strerror}", file=output) from error
    if as_json:
        facts = asdict(found)
        facts["actions"] = [{**row._asdict(), "kind": row.kind.name} for row in found.actions]
        facts["ranks"] = [rank._asdict() for rank in found.ranks]
        echo_json(facts)
        return
    name = measured.schedule.name or "schedule"
    click.echo(render_report(found, name=name), nl=False)


def _read(files: tuple[str, ...], schedule: str | None, request: Request) -> Profile:
    if schedule is not None:
        ran = request.read(schedule)
        return load_torch_traces(files, ran if ran.form is Form.LOWERED else lower(ran))
    if len(files) > 1:
        raise click.UsageError("several files are traces of torch's profiler: say --schedule")
    return load_profile(files[0])
