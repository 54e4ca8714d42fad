"""The ``fullbore`` command: which verbs there are, and how errors reach the user."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

import click

from fullbore import __version__
from fullbore.cli.help import examples
from fullbore.errors import ExecutionError, FullboreError, InvalidSchedule


class Verb(NamedTuple):
    """Where a verb's command is, and what it does in one line."""

    module: str
    command: str
    summary: str


# A verb is imported when it is used: `--help` is quick, and only `train` imports torch.
VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "list": Verb("fullbore.cli.families", "families", "List the schedule families."),
        "show": Verb("fullbore.cli.show", "show", "Draw a schedule."),
        "verify": Verb("fullbore.cli.verify", "verify", "Find everything wrong with a schedule."),
        "lower": Verb("fullbore.cli.lower", "lower", "Add communication and sharding."),
        "convert": Verb("fullbore.cli.convert", "convert", "Change a file's format or dialect."),
        "diff": Verb("fullbore.cli.diff", "diff", "Show where two schedules differ."),
        "simulate": Verb("fullbore.cli.simulate", "simulate", "Say what a schedule costs."),
        "compare": Verb("fullbore.cli.compare", "compare", "Compare all families."),
        "plan": Verb("fullbore.cli.plan", "plan", "Find the best schedule for costs and memory."),
        "profile": Verb("fullbore.cli.profile", "profile", "Say where measured time went."),
        "train": Verb(
            "fullbore.train.command", "train", "Train a language model through a pipeline."
        ),
    }
)


class BadInput(click.ClickException):
    """What the user gave makes no sense."""

    exit_code = 2


class Verdict(click.ClickException):
    """What the user gave is understood, and found wrong, or failed."""

    exit_code = 1


def failure(error: FullboreError) -> click.ClickException:
    """The one message that an error ends the program with, and the exit code of its kind."""
    found_wrong = isinstance(error, InvalidSchedule | ExecutionError)
    message = "\n".join([str(error), *getattr(error, "__notes__", ())])
    return Verdict(message) if found_wrong else BadInput(message)


class Verbs(click.Group):
    """The verbs of the table, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order in which one meets them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        command = getattr(import_module(verb.module), verb.command)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.summary) for name, verb in VERBS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; errors that have a message for the user end the program with it."""
        try:
            return super().invoke(ctx)
        except FullboreError as error:
            raise failure(error) from error
        except OSError as error:
            # A reader that has left is click's business; what names a file is not about the output.
            if isinstance(error, BrokenPipeError) or error.filename is not None:
                raise
            raise BadInput(f"the output cannot be written: {error.strerror}") from error


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "fullbore list",
        "fullbore show 1f1b --ranks 4 --microbatches 8",
        "fullbore lower zbv --ranks 4 --microbatches 8 -o zbv.csv",
        "fullbore verify zbv.csv",
    ),
)
@click.version_option(__version__, prog_name="fullbore", message="%(prog)s %(version)s")
def main() -> None:
    """Compile, check, draw and run pipeline-parallel schedules.

    A SCHEDULE is the name of a family, or a .csv, .json or .txt file. The exit code is 0 if all is
    well, 1 for findings or differences, 2 for wrong usage or input.
    """
    # What a terminal or a pipe cannot show must not end the program.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
