"""``fullbore plan``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fullbore.cli.costs import costs_option
from fullbore.cli.help import examples
from fullbore.cli.limits import counts, memory_limit
from fullbore.cli.output import echo_json, echo_table, json_option
from fullbore.errors import FormatError
from fullbore.formats import FORMATS, save
from fullbore.ir import Placement
from fullbore.plan import EFFORT, Candidate, Memory, Plan, Progress, save_plan
from fullbore.plan import plan as planned
from fullbore.sim import Costs, UniformCosts
from fullbore.view.files import ending_of, save_picture
from fullbore.view.panel import simulated

_STEPS = 1000


def _activations(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[float, float] | None:
    if value is None:
        return None
    try:
        held, kept = map(float, value.split(","))
    except ValueError:
        held = kept = -1.0
    if not 0 <= kept <= held < float("inf"):
        raise click.BadParameter(f"{value!r}; give what is held from F to I, and what from I to W")
    return held, kept


@click.command(
    epilog=examples(
        "fullbore plan --costs 18.5,18.1,9.3,0.6 -p 8 -m 24 --memory 1x --deadline 2",
        "fullbore plan --costs costs.json -p 4 -m 8 --memory 3e10 -v 2 --effort 1 -o plan.json",
        "fullbore plan --costs 18.5,18.1,9.3 -p 4 -m 8 --memory 0.5x -v 2 --effort 2 -o plan.html",
    )
)
@click.option("--ranks", "-p", type=click.IntRange(min=1), required=True, help="Ranks, P.")
@click.option(
    "--microbatches", "-m", type=click.IntRange(min=1), required=True, help="Microbatches, M."
)
@costs_option("1,1,1")
@click.option(
    "--activation-bytes",
    "activations",
    callback=_activations,
    metavar="F_TO_I,I_TO_W",
    help="What a rank holds of a microbatch from F to I and from I to W, for costs given as "
    "numbers.  [default: 1 until W]",
)
@click.option(
    "--memory",
    callback=memory_limit,
    metavar="BYTES|0.75x",
    help="What a rank may hold: bytes, or a multiple of P microbatches' activations.",
)
@click.option("--stages-per-rank", "-v", default="1,2,4", show_default=True, help="Which V to try.")
@click.option("--placement", default="loop,vee", show_default=True, help="Which to try.")
@click.option(
    "--objective",
    type=click.Choice(["makespan", "span"]),
    default="makespan",
    show_default=True,
    help="What should be short.",
)
@click.option(
    "--effort",
    type=click.IntRange(0, 20),
    default=EFFORT,
    show_default=True,
    help="Levels of search, each twice as long as the one before.",
)
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop after so long, with the best so far.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Where chance begins.")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    help="Write the best: a .json (with costs and proof), .csv or .txt schedule, or a picture.",
)
@json_option
def plan(
    *,
    costs: Costs | None,
    activations: tuple[float, float] | None,
    memory: Memory | None,
    stages_per_rank: str,
    placement: str,
    output: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the best schedule for costs and memory, and say how good any could be.

    Costs given as numbers are of all that a rank holds, whatever number of stages it is cut into.
    Ctrl-C ends the search with the best so far.
    """
    if output is not None and _ending(output) not in FORMATS:
        ending_of(output)
    model = _model(costs, activations)
    tried = counts(stages_per_rank)
    options |= {"num_ranks": options.pop("ranks")}
    options |= {"num_microbatches": options.pop("microbatches")}
    loops = [Placement.loop(options["num_ranks"], count) for count in tried]
    limit = None if memory is None else memory.bytes(model, loops)
    with _progress() as show:
        found = planned(
            costs=model,
            memory=limit,
            stages_per_rank=tried,
            shapes=tuple(placement.split(",")),
            on_progress=show,
            **options,
        )
    if output is not None:
        _write(found, output, model)
    if as_json:
        echo_json(_facts(found))
        return
    echo_table(_rows(found))
    click.echo("\n" + "\n".join(_reasons(found)))


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on stderr, where that is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda part, best: None
        return
    with click.progressbar(length=_STEPS, label="planning", file=sys.stderr) as bar:

        def show(part: float, best: Candidate | None) -> None:
            bar.update(max(0, int(part * _STEPS) - bar.pos))

        yield show


def _model(costs: Costs | None, activations: tuple[float, float] | None) -> Costs:
    model = UniformCosts(F=1, I=1, W=1) if costs is None else costs
    if not isinstance(model, UniformCosts):
        if activations is not None:
            raise click.UsageError("--activation-bytes is for costs given as numbers")
        return model
    held, kept = (1.0, 1.0) if activations is None else activations
    return replace(model, activation_bytes=held, kept_bytes=kept)


def _ending(output: str) -> str:
    return Path(output).suffix.lower().removeprefix(".")


def _write(found: Plan, output: str, model: Costs) -> None:
    try:
        if _ending(output) == "json":
            save_plan(found, output, costs=model)
        elif _ending(output) in FORMATS:
            save(found.schedule, output)
        else:
            save_picture(simulated(found.schedule, model), output)
    except OSError as error:
        raise FormatError(f"cannot be written: {error.strerror}", file=output) from error


def _rows(found: Plan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (
            "schedule",
            "placement",
            "stages/rank",
            "makespan",
            "bubble",
            "span",
            "peak",
            "above bound",
        )
    ]
    rows += [
        (
            candidate.schedule.name,
            candidate.placement.shape,
            str(candidate.stages_per_rank),
            f"{candidate.makespan:g}",
            f"{candidate.makespan_bubble_rate:.2%}",
            f"{candidate.span:g}",
            f"{max(candidate.peak):g}",
            f"{candidate.gap:.2%}",
        )
        for candidate in found.candidates
    ]
    return rows


def _reasons(found: Plan) -> list[str]:
    best = found.best
    shape = best.placement.shape
    lines = [
        f"best: {best.schedule.name}, {shape}, {best.stages_per_rank} a rank. No schedule on this "
        f"placement takes less than {best.bound:g}"
    ]
    if found.bound < best.bound:
        lines.append(f"other placements that were tried could give {found.bound:g} at best")
    families = [c for c in found.candidates if c.schedule.name != "plan"]
    if best not in families and families:
        gain = families[0].length / best.length - 1
        lines.append(
            f"{gain:.2%} faster than the best family that fits, {families[0].schedule.name}"
        )
    stopped = {"deadline": ", then the deadline", "interrupt": ", then it was interrupted"}
    lines.append(
        f"effort {found.effort} reached{stopped.get(found.stopped or '', '')}: "
        f"{found.evaluations} orders in {found.seconds:.1f} s, and {found.compile_seconds:.1f} s "
        f"to get ready; seed {found.seed}"
    )
    return [*lines, *(f"left out: {reason}" for reason in found.left_out)]


def _facts(found: Plan) -> dict[str, object]:
    names = ("bound", "objective", "memory", "seed", "effort", "evaluations", "seconds", "stopped")
    return {
        **{name: getattr(found, name) for name in names},
        "left_out": list(found.left_out),
        "candidates": [
            {
                "schedule": candidate.schedule.name,
                "placement": list(candidate.placement.ranks),
                "makespan": candidate.makespan,
                "makespan_bubble_rate": candidate.makespan_bubble_rate,
                "span": candidate.span,
                "span_bubble_rate": candidate.span_bubble_rate,
                "peak_memory": list(candidate.peak),
                "bound": candidate.bound,
                "gap": candidate.gap,
            }
            for candidate in found.candidates
        ],
    }
