"""``fullbore simulate``."""

from __future__ import annotations

from dataclasses import asdict

import click

from fullbore.cli.costs import costs_of_plan, costs_option, describe
from fullbore.cli.help import examples
from fullbore.cli.output import echo_json, echo_table, json_option, size_of
from fullbore.cli.source import Request, source_options
from fullbore.ir import Action, Schedule
from fullbore.sim import Causes, Costs, Metrics, TableCosts, measure
from fullbore.sim import simulate as simulated

_SHOWN = 12


@click.command(
    epilog=examples(
        "fullbore simulate zbv --ranks 4 --microbatches 8",
        "fullbore simulate 1f1b --ranks 8 --microbatches 24 --costs 18.5,18.1,9.3,0.6",
        "fullbore simulate mine.csv --costs costs.json --json",
    )
)
@click.argument("schedule")
@source_options
@costs_option("1 each and stage, messages take no time")
@click.option("--critical-path", is_flag=True, help="List all of the critical path.")
@json_option
def simulate(
    schedule: str, request: Request, *, costs: Costs | None, critical_path: bool, as_json: bool
) -> None:
    """Say how long a schedule takes, who waits for what, and how much memory it needs.

    Every action starts as soon as it can. Times are in the unit of the costs. A plan's file has
    costs of its own, which hold unless others are given.
    """
    costs = costs_of_plan(schedule) if costs is None else costs
    found = request.read(schedule, costs)
    model = TableCosts(F=1, I=1, W=1) if costs is None else costs
    timeline = simulated(found, model)
    causes = Causes(found, timeline)
    metrics = measure(found, timeline, model, causes=causes)
    path = causes.critical_path()
    if as_json:
        echo_json(_facts(found, metrics, path))
        return
    click.echo(_title(found))
    click.echo(describe(model, found))
    click.echo()
    click.echo(
        f"makespan {metrics.makespan:g}, bubble {metrics.makespan_bubble_rate:.2%}; "
        f"span {metrics.span:g}, bubble {metrics.span_bubble_rate:.2%}"
    )
    if metrics.messages:
        size = f", {metrics.message_bytes:g} bytes" if metrics.message_bytes else ""
        click.echo(f"{metrics.messages} messages between ranks{size}")
    click.echo()
    echo_table(_rows(metrics))
    click.echo()
    rest = len(path) - _SHOWN
    shown = path if critical_path or rest <= 0 else path[:_SHOWN]
    more = "" if shown is path else f" ... and {rest} more (--critical-path)"
    click.echo(f"critical path, {len(path)} actions: {' '.join(map(str, shown))}{more}")


def _title(schedule: Schedule) -> str:
    return (
        f"{schedule.name or 'schedule'}: {schedule.num_ranks} ranks, {schedule.num_stages} stages, "
        f"{schedule.num_microbatches} microbatches"
    )


def _rows(metrics: Metrics) -> list[tuple[str, ...]]:
    has_memory = any(peak.bytes for peak in metrics.peak)
    head = ("rank", "busy", "idle: warm-up", "steady", "cool-down", "exposed messages")
    rows: list[tuple[str, ...]] = [(*head, "peak bytes", "at") if has_memory else head]
    for rank, (busy, idle, exposed, peak) in enumerate(
        zip(metrics.busy, metrics.idle, metrics.exposed, metrics.peak, strict=True)
    ):
        row = (str(rank), *(f"{value:g}" for value in (busy, *idle, exposed)))
        rows.append((*row, f"{peak.bytes:g}", str(peak.action or "-")) if has_memory else row)
    return rows


def _facts(schedule: Schedule, metrics: Metrics, path: tuple[Action, ...]) -> dict[str, object]:
    facts = asdict(metrics)
    facts["idle"] = [idle._asdict() for idle in metrics.idle]
    facts["peak"] = [
        {"bytes": peak.bytes, "action": str(peak.action) if peak.action else None}
        for peak in metrics.peak
    ]
    return {**size_of(schedule), **facts, "critical_path": [str(action) for action in path]}
