"""``fullbore show``."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import click

from fullbore.cli.help import examples
from fullbore.cli.output import echo_json, echo_picture, json_option, size_of, wants_color
from fullbore.cli.source import Request, source_options
from fullbore.errors import InvalidSchedule
from fullbore.ir import Form, Schedule
from fullbore.passes import lower
from fullbore.sim import Slot, unit_timeline
from fullbore.verify import Finding, verify
from fullbore.view.blocks import count
from fullbore.view.grid import render_grid


@click.command(
    epilog=examples(
        "fullbore show 1f1b --ranks 4 --microbatches 8",
        "fullbore show interleaved_1f1b -p 8 -m 32 -v 4 --compact",
        "fullbore show zbv --ranks 4 --microbatches 8 --lowered",
        "fullbore show mine.csv --dialect monarch --width 0 | less -S",
    )
)
@click.argument("schedule")
@source_options
@click.option(
    "--lowered/--no-lowered",
    default=None,
    help="List all actions in order, communication too, or draw computation over time. By default "
    "what a file holds; a family is drawn.",
)
@click.option(
    "--reduce-grad/--no-reduce-grad", default=True, help="Show REDUCE_GRAD, or leave it out."
)
@click.option("--compact", is_flag=True, help="One letter a unit of time, for large schedules.")
@click.option(
    "--width",
    type=click.IntRange(min=0),
    metavar="N",
    help="Fold after so many columns; 0 never folds.",
)
@click.option("--color/--no-color", default=None, help="By default colours on a terminal.")
@json_option
def show(
    schedule: str,
    request: Request,
    *,
    lowered: bool | None,
    reduce_grad: bool,
    compact: bool,
    width: int | None,
    color: bool | None,
    as_json: bool,
) -> None:
    """Draw a schedule, a row a rank, at unit costs.

    A forward, an input gradient and a weight gradient of one stage take one unit of time, a full
    backward two; messages take none. A file that cannot run is listed without times,
    and a warning on stderr says so of one that is not valid.
    """
    found = request.read(schedule)
    if lowered and found.form is Form.COMPUTE:
        found = lower(found)
    if as_json:
        echo_json(_report(found))
        return
    if not found.name:
        found = replace(found, name=Path(schedule).name)
    _warn(found, schedule)
    use_color = wants_color(color)
    text = render_grid(
        found,
        color=use_color,
        width=width,
        lowered=lowered,
        compact=compact,
        reduce_grad=reduce_grad,
    )
    echo_picture(text, color=use_color)


def _errors(schedule: Schedule) -> list[Finding]:
    return [finding for finding in verify(schedule) if finding.severity == "error"]


def _warn(schedule: Schedule, source: str) -> None:
    """Say on stderr that the picture is of a schedule that must not run."""
    errors = _errors(schedule)
    if errors:
        click.echo(
            f"Warning: {source} is not valid ({count(len(errors), 'error')}); "
            f"'fullbore verify {source}' lists them",
            err=True,
        )


def _report(schedule: Schedule) -> dict[str, object]:
    try:
        timeline = unit_timeline(schedule)
    except InvalidSchedule as error:
        return {
            "schedule": size_of(schedule),
            "timeline": None,
            "findings": [asdict(finding) for finding in error.findings],
            "programs": [[str(action) for action in program] for program in schedule.programs],
        }
    return {
        "schedule": size_of(schedule),
        "timeline": {
            "makespan": timeline.makespan,
            "span": timeline.span,
            "bubble_rate_of_makespan": timeline.makespan_bubble_rate,
            "bubble_rate_of_span": timeline.span_bubble_rate,
            "busy": timeline.busy,
            "idle": timeline.idle,
            "ranks": [[_facts(slot) for slot in slots] for slots in timeline.ranks],
        },
        "findings": [asdict(finding) for finding in _errors(schedule)],
        "programs": [[str(action) for action in program] for program in schedule.programs],
    }


def _facts(slot: Slot) -> dict[str, object]:
    facts: dict[str, object] = {"action": str(slot.action), "start": slot.start, "end": slot.end}
    if slot.parts:
        facts["parts"] = [_facts(part) for part in slot.parts]
    return facts
