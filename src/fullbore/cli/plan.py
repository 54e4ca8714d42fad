"""``fullbore plan``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from fullbore.cli import plan_frontier
from fullbore.cli.costs import costs_option
from fullbore.cli.help import examples
from fullbore.cli.limits import counts, memory_limit
from fullbore.cli.output import check_folder, echo_json, echo_table, json_option
from fullbore.cli.plan_costs import (
    activations_option,
    chosen_costs,
    frontier_option,
    layers_option,
    model_option,
)
from fullbore.cli.plan_report import facts, rows, words
from fullbore.errors import FormatError, ParameterError
from fullbore.formats import FORMATS, save
from fullbore.ir import Placement
from fullbore.plan import EFFORT, Candidate, LayerCosts, Memory, Plan, Progress, save_plan
from fullbore.plan import frontier as planned_frontier
from fullbore.plan import joint as planned_jointly
from fullbore.plan import plan as planned
from fullbore.sim import Costs, UniformCosts
from fullbore.view import save_frontier, save_picture, simulated
from fullbore.view.files import ending_of
from fullbore.view.frontier import frontier_ending

_STEPS = 1000
_SPLITS = 8
_CHEAP = 5000


@click.command(
    epilog=examples(
        "fullbore plan --costs 18.5,18.1,9.3,0.6 -p 8 -m 24 --memory 1x --deadline 2",
        "fullbore plan --costs costs.json -p 4 -m 8 --memory 3e10 -v 2 --effort 1 -o plan.json",
        "fullbore plan --costs 18.5,18.1,9.3 -p 4 -m 8 --memory 0.5x -v 2 --effort 2 -o plan.html",
        "fullbore plan --costs 18.5,18.1,9.3 -p 4 -m 8 --frontier 0.5x,1x,2x --effort 1 -o all.svg",
        "fullbore plan --model 32,4096,32,1024,50257 -p 4 -m 8 --joint --effort 1 -v 1,2",
    )
)
@click.option("--ranks", "-p", type=click.IntRange(min=1), required=True, help="Ranks, P.")
@click.option(
    "--microbatches", "-m", type=click.IntRange(min=1), required=True, help="Microbatches, M."
)
@costs_option("1,1,1")
@activations_option
@layers_option
@model_option
@click.option(
    "--memory",
    callback=memory_limit,
    metavar="BYTES|0.75x",
    help="What a rank may hold: bytes, or a multiple of P microbatches' activations.",
)
@frontier_option
@click.option(
    "--joint/--no-joint",
    default=None,
    help="Try several splits of the layers, or only that whose busiest rank has least to do.  "
    f"[default: several, up to {_CHEAP} actions]",
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
    layers: LayerCosts | None,
    model: LayerCosts | None,
    memory: Memory | None,
    frontier: tuple[Memory, ...] | None,
    joint: bool | None,
    placement: str,
    output: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the best schedule for costs and memory, and say how good any could be.

    Costs given as numbers are of all that a rank holds, whatever number of stages it is cut into.
    Ctrl-C ends the search with the best so far.
    """
    chosen = chosen_costs(costs, activations, layers, model)
    _check(chosen, memory, frontier, joint=joint, output=output)
    options |= {"num_ranks": options.pop("ranks")}
    options |= {"num_microbatches": options.pop("microbatches")}
    options |= {"stages_per_rank": counts(options["stages_per_rank"])}
    options |= {"shapes": tuple(placement.split(","))}
    ranks = options["num_ranks"]
    loops = [Placement.loop(ranks, count) for count in options["stages_per_rank"]]
    if frontier is not None:
        limits = [limit.bytes(chosen, loops) for limit in frontier]
        _plan_frontier(limits, chosen, options, output=output, as_json=as_json)
        return
    options |= {"memory": None if memory is None else memory.bytes(chosen, loops)}
    together = None
    with _progress() as show:
        if isinstance(chosen, LayerCosts):
            actions = 3 * max(loop.num_stages for loop in loops) * options["num_microbatches"]
            several = actions <= _CHEAP if joint is None else joint
            together = planned_jointly(
                chosen, splits=_SPLITS if several else 1, on_progress=show, **options
            )
            chosen, found = together.costs, together.plan
        else:
            found = planned(costs=chosen, on_progress=show, **options)
    if output is not None:
        _write(found, output, chosen)
    if as_json:
        echo_json(facts(found, chosen, together))
        return
    echo_table(rows(found))
    click.echo("\n" + "\n".join(words(found, chosen, together)))


def _check(
    costs: Costs,
    memory: Memory | None,
    limits: tuple[Memory, ...] | None,
    *,
    joint: bool | None,
    output: str | None,
) -> None:
    """Complain before anything is planned."""
    if joint and not isinstance(costs, LayerCosts):
        raise click.UsageError("--joint splits layers; give --layer-costs or --model")
    if limits is not None and (joint or memory is not None):
        other = "--joint" if joint else "--memory"
        raise click.UsageError(f"--frontier has memory limits of its own, and takes no {other}")
    if output is None:
        return
    check_folder(output)
    if limits is not None:
        frontier_ending(output)
    elif _ending(output) not in FORMATS:
        try:
            ending_of(output)
        except ParameterError as error:
            raise click.UsageError(
                f"{error}; plans in {', '.join(f'.{e}' for e in FORMATS)}"
            ) from None


def _plan_frontier(
    limits: list[float],
    costs: Costs,
    options: dict[str, Any],
    *,
    output: str | None,
    as_json: bool,
) -> None:
    with _progress() as show:
        found = planned_frontier(limits, costs=costs, on_progress=show, **options)
    if output is not None:
        title = f"{options['num_ranks']} ranks, {options['num_microbatches']} microbatches"
        in_bytes = not isinstance(costs, UniformCosts)
        with _writing(output):
            save_frontier(plan_frontier.drawn(found, title=title, in_bytes=in_bytes), output)
    if as_json:
        echo_json(plan_frontier.facts(found))
        return
    echo_table(plan_frontier.rows(found))


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


def _ending(output: str) -> str:
    return Path(output).suffix.lower().removeprefix(".")


def _write(found: Plan, output: str, costs: Costs) -> None:
    with _writing(output):
        if _ending(output) == "json":
            save_plan(found, output, costs=costs)
        elif _ending(output) in FORMATS:
            save(found.schedule, output)
        else:
            save_picture(simulated(found.schedule, costs), output)


@contextmanager
def _writing(output: str) -> Iterator[None]:
    """Say which file cannot be written."""
    try:
        yield
    except OSError as error:
        raise FormatError(f"cannot be written: {error.strerror}", file=output) from error
