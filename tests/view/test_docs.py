"""What the page on pictures shows works."""

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fullbore.cli import main
from fullbore.sim import TableCosts, UniformCosts, save_costs
from fullbore.view.files import WRITERS

TEXT = (Path(__file__).parents[2] / "docs" / "pictures.md").read_text("utf-8")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_work():
    Path("mine.csv").write_text("0F0,0B0\n", "utf-8")
    save_costs(TableCosts(F=1, I=1, W=1), "costs.json")
    commands = re.findall(r"^fullbore (show .*)$", TEXT, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        result = CliRunner().invoke(main, command.split())
        assert result.exit_code == 0, result.output
        assert Path(command.split()[-1]).stat().st_size > 300


def test_the_examples_work(in_a_folder: Path):
    first, second = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    space: dict[str, Any] = {}
    exec(first, space)
    zbv = space["zbv"]

    class Profile:
        def timeline(self):
            return zbv.timeline

    costs = UniformCosts(F=1, I=1, W=1, unit="s")
    exec(second, {**space, "schedule": zbv.schedule, "costs": costs, "profile": Profile()})
    written = {path.name for path in in_a_folder.iterdir()}
    assert written == {"both.html", "both.svg", "zbv.trace.json", "step.html"}


def test_every_ending_is_described():
    assert all(f"`{ending}`" in TEXT for ending in WRITERS)
