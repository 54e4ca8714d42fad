"""``fullbore train``."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fullbore.errors import ParameterError
from fullbore.plan import Memory, parse_memory
from fullbore.train.membership import Membership
from fullbore.train.settings import ModelSize, Planning, Recipe, Settings
from fullbore.train.source import (
    DEFAULT_MICROBATCHES,
    DEFAULT_RANKS,
    find_recipe,
    find_schedule,
)

if TYPE_CHECKING:
    from fullbore.train.progress import Progress

SIZE, RECIPE = ModelSize(), Recipe()
COUNT = click.IntRange(min=1)
FILE = click.Path(path_type=Path)
PLANNING = Planning()

EXAMPLES = """\b
Examples:
  fullbore train --schedule zbv --ranks 2 --check
  fullbore train --schedule mine.csv --text my_notes/ --steps 1000
  fullbore train --schedule 1f1b --ranks 4 --save run.pt --save-every 100
  fullbore train --schedule zbv --split 1,3,1,3 --plan --memory 1x
  fullbore train --resume run.pt --save run.pt --schedule zbv --ranks 2 --steps 2000
  torchrun --nproc-per-node 2 --no-python fullbore train --schedule 1f1b
"""


def _counts(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    try:
        return None if value is None else tuple(map(int, value.split(",")))
    except ValueError:
        raise click.BadParameter(f"{value!r}; give numbers of layers such as 1,3,3,1") from None


def _memory(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Memory | None:
    try:
        return None if value is None else parse_memory(value)
    except ParameterError as error:
        raise click.BadParameter(str(error)) from None


@click.command(epilog=EXAMPLES)
@click.option(
    "--schedule",
    metavar="NAME|FILE",
    default="zbv",
    show_default=True,
    help="A family, or a .csv, .json or .txt file.",
)
@click.option(
    "--ranks", "-p", metavar="N", type=COUNT, help=f"Pipeline ranks.  [default: {DEFAULT_RANKS}]"
)
@click.option(
    "--stages-per-rank", "-v", metavar="N", type=COUNT, help="Where the family has a choice."
)
@click.option(
    "--microbatches",
    "-m",
    metavar="N",
    type=COUNT,
    help=f"Parts that a batch is cut into.  [default: {DEFAULT_MICROBATCHES}]",
)
@click.option(
    "--batch-size", metavar="N", type=COUNT, help=f"Rows a step.  [default: {RECIPE.batch_size}]"
)
@click.option(
    "--steps",
    metavar="N",
    type=COUNT,
    default=200,
    show_default=True,
    help="At which step to end; a resumed run has some of them behind it.",
)
@click.option(
    "--layers", metavar="N", type=COUNT, help=f"At least one a stage.  [default: {SIZE.layers}]"
)
@click.option(
    "--width", metavar="N", type=COUNT, help=f"Of the hidden vectors.  [default: {SIZE.width}]"
)
@click.option(
    "--heads", metavar="N", type=COUNT, help=f"Of the attention.  [default: {SIZE.heads}]"
)
@click.option(
    "--sequence-length",
    metavar="N",
    type=COUNT,
    help=f"Bytes a row.  [default: {SIZE.sequence_length}]",
)
@click.option(
    "--lr", "learning_rate", type=float, help=f"Of AdamW.  [default: {RECIPE.learning_rate:g}]"
)
@click.option("--seed", type=int, help=f"Of weights and data.  [default: {RECIPE.seed}]")
@click.option(
    "--text",
    type=FILE,
    help="A file or a folder to train on.  [default: the Python standard library's source]",
)
@click.option(
    "--check",
    is_flag=True,
    help="Compare every step's losses and gradients with the unpipelined model.",
)
@click.option("--eval-every", metavar="N", type=COUNT, help="Steps between looks at held-out text.")
@click.option("--save", type=FILE, help="Write checkpoints to this file: at the end, on Ctrl-C.")
@click.option(
    "--save-every", metavar="N", type=COUNT, help="Steps between checkpoints; with --save."
)
@click.option("--resume", type=FILE, help="Go on from this checkpoint, on ranks of any number.")
@click.option(
    "--profile",
    type=FILE,
    help="Write the latest steps' profile to this folder: costs, a trace, a report.",
)
@click.option(
    "--split",
    callback=_counts,
    metavar="N,N,...",
    help="Layers of each stage.  [default: as even as can be]",
)
@click.option(
    "--plan",
    is_flag=True,
    help="Measure some steps, plan the best order for these stages, and go on with it.",
)
@click.option(
    "--plan-after",
    metavar="N",
    type=COUNT,
    help=f"Steps to measure first; twice, where a schedule leaves costs open.  "
    f"[default: {PLANNING.after}]",
)
@click.option(
    "--plan-deadline",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    help=f"Time to plan for.  [default: {PLANNING.deadline:g}]",
)
@click.option(
    "--memory",
    callback=_memory,
    metavar="BYTES|0.75x",
    help="What a rank may hold under the plan: bytes in all, or a multiple of P microbatches' "
    "activations beside parameters and optimizer.",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option(
    "--transport",
    type=click.Choice(["auto", "shm", "p2p", "local"]),
    default="auto",
    show_default=True,
    help="What carries messages: shared memory, torch.distributed, or nothing: local plays all "
    "ranks in one process.",
)
@click.option(
    "--controller",
    type=click.Choice(["local", "monarch"]),
    help="Drive all ranks from this process: in it, or each in an actor of Monarch's.",
)
@click.option(
    "--threads", metavar="N", type=COUNT, default=1, show_default=True, help="Of each rank."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def train(*, as_json: bool, **options: Any) -> None:
    """Train a byte-level language model through a pipeline of processes.

    The text is, unless told otherwise, the source of Python's standard library. Progress goes to
    stderr, a summary to stdout. Under torchrun the processes that it started are the ranks.

    The exit code is 0 when all steps are done, 1 if a rank fails, the loss is no number any more or
    --check finds a difference, 2 for wrong usage or input, 130 after Ctrl-C.
    """
    try:
        sys.exit(_train(options, as_json=as_json))
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(130)


def _train(options: dict[str, Any], *, as_json: bool) -> int:
    """Run; the exit code."""
    # The first of these says what to install where torch is missing.
    import fullbore.runtime  # noqa: F401
    from fullbore.train import drive
    from fullbore.train.checkpoint import load_checkpoint
    from fullbore.train.screen import make_screen

    path = options["resume"]
    checkpoint = None if path is None else load_checkpoint(path)
    membership = Membership.find()
    if membership is not None and options["ranks"] is None:
        options["ranks"] = membership.size
    settings = _settings(options, saved=None if checkpoint is None else checkpoint.recipe)
    screen = make_screen(settings, quiet=membership is not None and membership.rank > 0)
    outcome, progress = drive.run(settings, checkpoint, screen, membership=membership)
    if progress is not None:
        _report(progress, as_json=as_json)
    return outcome.exit_code


def _settings(options: dict[str, Any], *, saved: Recipe | None) -> Settings:
    """What the options mean."""
    given = dict(options)
    if given["save_every"] is not None and given["save"] is None:
        raise click.UsageError("--save-every needs --save")
    schedule = find_schedule(
        given.pop("schedule"),
        ranks=given.pop("ranks"),
        stages_per_rank=given.pop("stages_per_rank"),
        microbatches=given.pop("microbatches"),
    )
    if given["split"] is not None and given["layers"] is None and saved is None:
        given["layers"] = sum(given["split"])
    given["planning"] = _planning(given)
    names = {field.name for kind in (ModelSize, Recipe) for field in fields(kind)}
    recipe = find_recipe(saved, **{name: given.pop(name) for name in names & given.keys()})
    del given["resume"]
    return Settings(recipe, schedule, **given)


def _planning(given: dict[str, Any]) -> Planning | None:
    """Take what belongs to ``--plan`` out of the options."""
    wanted = given.pop("plan")
    options = {
        "after": given.pop("plan_after"),
        "deadline": given.pop("plan_deadline"),
        "memory": given.pop("memory"),
    }
    chosen = {name: value for name, value in options.items() if value is not None}
    if not wanted and chosen:
        raise click.UsageError("--plan-after, --plan-deadline and --memory need --plan")
    return Planning(**chosen) if wanted else None


def _report(progress: Progress, *, as_json: bool) -> None:
    """Say what has come of the run."""
    from fullbore.train import summary

    if as_json:
        click.echo(json.dumps(summary.facts(progress), indent=2))
    else:
        for line in summary.lines(progress):
            click.echo(line)
    complaint = summary.complaint(progress)
    if complaint is not None:
        click.echo(complaint, err=True)
