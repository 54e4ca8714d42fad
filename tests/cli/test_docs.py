"""What the documentation shows is what the commands print."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from fullbore.cli import main
from fullbore.cli.app import VERBS

DOCS = Path(__file__).parents[2] / "docs"
SESSION = re.compile(r"```\n\$ fullbore (.*)\n```\n\n```\n((?:[^`].*\n|\n)*)```")


def sessions() -> list[tuple[str, str]]:
    text = "".join((DOCS / page).read_text("utf-8") for page in ("grid.md", "simulate.md"))
    return [(command, printed) for command, printed in SESSION.findall(text)]


def test_there_are_examples():
    assert len(sessions()) == 3


@pytest.mark.parametrize(("command", "printed"), sessions())
def test_what_they_print_is_right(command: str, printed: str):
    assert CliRunner().invoke(main, command.split()).stdout == printed


def test_every_verb_is_described():
    text = (DOCS / "cli.md").read_text("utf-8")
    assert all(f"| `{verb}` |" in text for verb in VERBS)


def test_the_lowering_commands_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    commands = re.findall(
        r"^fullbore (lower zbv .*)$", (DOCS / "cli.md").read_text("utf-8"), re.MULTILINE
    )
    assert len(commands) == 3
    for command in commands:
        arguments = [argument.strip('"') for argument in command.split()]
        assert CliRunner().invoke(main, arguments).exit_code == 0, command
