"""``fullbore profile``."""

from __future__ import annotations

from dataclasses import asdict

import click

from fullbore.cli.costs import costs_option
from fullbore.cli.help import examples
from fullbore.cli.output import echo_json, echo_table, json_option
from fullbore.cli.source import Request, source_options
from fullbore.errors import FormatError
from fullbore.ir import Form
from fullbore.passes import lower
from fullbore.sim import Costs, Profile, load_profile, load_torch_traces, save_costs
from fullbore.sim.report import Report, report


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
    _print(measured, found)


def _read(files: tuple[str, ...], schedule: str | None, request: Request) -> Profile:
    if schedule is not None:
        ran = request.read(schedule)
        return load_torch_traces(files, ran if ran.form is Form.LOWERED else lower(ran))
    if len(files) > 1:
        raise click.UsageError("several files are traces of torch's profiler: say --schedule")
    return load_profile(files[0])


def _print(measured: Profile, found: Report) -> None:
    name = measured.schedule.name or "schedule"
    click.echo(
        f"{name}: {found.steps} steps, median {_ms(found.measured)} ms; predicted "
        f"{_ms(found.predicted)} ms, error {found.error:.1%}"
    )
    click.echo()
    rows: list[tuple[str, ...]] = [("action", "samples", "predicted ms", "measured ms", "error")]
    for row in found.actions:
        stage = "" if row.stage < 0 else str(row.stage)
        predicted = "-" if row.predicted is None else _ms(row.predicted)
        error = "-" if row.error is None else f"{row.error:.1%}"
        rows.append(
            (f"{stage}{row.kind.name}", str(row.samples), predicted, _ms(row.median), error)
        )
    echo_table(rows)
    click.echo()
    heads = ("rank", "compute ms", "receiving", "sending", "overhead", "idle")
    echo_table([heads, *((str(r), *map(_ms, rank)) for r, rank in enumerate(found.ranks))])


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"
