"""``fullbore show``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from fullbore.cli.costs import costs_of_plan, costs_option
from fullbore.cli.help import examples
from fullbore.cli.output import echo_json, echo_picture, json_option, size_of, wants_color
from fullbore.cli.source import Request, source_options
from fullbore.errors import FormatError, InvalidSchedule
from fullbore.ir import Form, Schedule
from fullbore.passes import lower
from fullbore.sim import Costs, Slot, unit_timeline
from fullbore.verify import Finding, verify
from fullbore.view.blocks import count
from fullbore.view.files import ending_of, save_picture
from fullbore.view.grid import render_grid
from fullbore.view.panel import simulated

PICTURE_ONLY = ("costs", "dark", "memory", "messages")
GRID_ONLY = ("compact", "color")


def picture_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for files."""
    switch: dict[str, Any] = {"default": None}
    for option in (
        click.option("--messages/--no-messages", help="Arrows for messages: SVG, PNG.", **switch),
        click.option("--memory/--no-memory", help="What ranks hold: SVG, PNG.", **switch),
        click.option("--dark/--light", help="The ground: SVG, PNG, HTML.", **switch),
        costs_option("of one stage: F, I and W 1 each, a message 0; for files but .txt"),
        click.option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write a .svg, .png, .html (interactive), .trace.json (for Perfetto) or .txt.",
        ),
    ):
        command = option(command)
    return command


@click.command(
    epilog=examples(
        "fullbore show 1f1b --ranks 4 --microbatches 8",
        "fullbore show interleaved_1f1b -p 8 -m 32 -v 4 --compact",
        "fullbore show zbv --ranks 4 --microbatches 8 --lowered",
        "fullbore show mine.csv --dialect monarch --width 0 | less -S",
        "fullbore show zbv -p 4 -m 8 -o zbv.svg --memory",
        "fullbore show zbv -p 4 -m 8 --costs 18.5,18.1,9.3,0.6 -o zbv.html",
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
    help="Fold after so many columns; 0 never folds. Of an SVG or PNG: its width in pixels.",
)
@click.option("--color/--no-color", default=None, help="By default colours on a terminal.")
@picture_options
@json_option
def show(
    schedule: str,
    request: Request,
    *,
    lowered: bool | None,
    output: str | None,
    **options: Any,
) -> None:
    """Draw a schedule, a row a rank: on the terminal, or as a picture in a file.

    On the terminal at unit costs: a forward, an input gradient and a weight gradient of one stage
    take one unit of time, a full backward two; messages take none. A file that cannot run is listed
    without times, and a warning on stderr says so of one that is not valid.
    """
    if output is not None and options["as_json"]:
        raise click.UsageError("--json prints what -o would draw; give one of the two")
    as_text = output is None or Path(output).suffix.lower() == ".txt"
    _refuse(options, PICTURE_ONLY if as_text else GRID_ONLY, as_text=as_text)
    if output is not None and not as_text:
        ending_of(output)
    if options["costs"] is None:
        options["costs"] = costs_of_plan(schedule)
    found = request.read(schedule, options["costs"])
    if lowered and found.form is Form.COMPUTE:
        found = lower(found)
    if options["as_json"]:
        echo_json(_report(found))
        return
    if not found.name:
        found = replace(found, name=Path(schedule).name)
    _warn(found, schedule)
    if output is None:
        use_color = wants_color(options["color"])
        text = _grid(found, lowered, {**options, "color": use_color})
        echo_picture(text, color=use_color)
    else:
        _write(found, output, lowered, options)


def _refuse(options: dict[str, Any], names: tuple[str, ...], *, as_text: bool) -> None:
    """Options that would change nothing are a mistake."""
    given = next((name for name in names if options[name] not in (None, False)), None)
    if given is not None:
        where = "pictures; write one with -o FILE.html" if as_text else "the terminal and .txt"
        raise click.UsageError(f"--{given} is for {where}")


def _grid(schedule: Schedule, lowered: bool | None, options: dict[str, Any]) -> str:  # noqa: FBT001
    names = ("color", "width", "compact", "reduce_grad")
    return render_grid(schedule, lowered=lowered, **{name: options[name] for name in names})


def _write(
    schedule: Schedule,
    output: str,
    lowered: bool | None,  # noqa: FBT001 - an option's value
    options: dict[str, Any],
) -> None:
    try:
        if Path(output).suffix.lower() == ".txt":
            text = _grid(schedule, lowered, {**options, "color": bool(options["color"])})
            Path(output).write_text(text + "\n", "utf-8")
            return
        costs: Costs | None = options["costs"]
        names = ("dark", "width", "memory", "messages")
        wanted = {name: options[name] for name in names if options[name] is not None}
        save_picture(simulated(schedule, costs), output, **wanted)
    except OSError as error:
        raise FormatError(f"cannot be written: {error.strerror}", file=output) from error


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
