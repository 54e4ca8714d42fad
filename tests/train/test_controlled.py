"""`fullbore train --controller`: one process drives all ranks, and the numbers stay the same."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import fullbore as fb
from fullbore.cli import main

pytestmark = pytest.mark.torch

TINY = ["--layers", 8, "--width", 16, "--heads", 2, "--sequence-length", 16, "--lr", 0.01]
SOURCE = Path(__file__)
MEASURED = {"tokens_per_second", "step_seconds", "checkpoint", "plan"}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def train(*options: object) -> Result:
    arguments = ["train", "--text", SOURCE, "--batch-size", 5, *options]
    return CliRunner().invoke(main, list(map(str, arguments)))


def start(*options: object) -> dict[str, Any]:
    """A run of a tiny model; all of its summary that does not depend on time."""
    result = train("-m", 4, *TINY, *options, "--json")
    assert result.exit_code == 0, result.output
    return {name: fact for name, fact in json.loads(result.stdout).items() if name not in MEASURED}


def assert_same_files(one: Path, other: Path) -> None:
    found, wanted = (torch.load(path, weights_only=True) for path in (one, other))
    assert found["model"].keys() == wanted["model"].keys()
    for name, weight in wanted["model"].items():
        assert torch.equal(found["model"][name], weight), name
        for key, value in wanted["optimizer"][name].items():
            assert torch.equal(found["optimizer"][name][key], value), (name, key)


@pytest.mark.parametrize("schedule", ["gpipe", "interleaved_1f1b", "looped_bfs", "zbv", "v_min"])
def test_losses_are_those_of_ranks_with_programs_of_their_own(schedule: str):
    options = ["--schedule", schedule, "--steps", 4, "--eval-every", 2, "--check"]
    found = start(*options, "--controller", "local")
    assert found == start(*options, "--transport", "local")
    assert not found["check"]["wrong"]


def test_a_schedule_from_a_file(tmp_path: Path):
    path = tmp_path / "mine.csv"
    fb.save(fb.build("zb_h1", num_ranks=4, num_microbatches=4), path)
    result = train(
        *["--schedule", path, "--steps", 2, *TINY, "--check", "--json"], "--controller", "local"
    )
    facts = json.loads(result.stdout)
    assert facts["check"]["equal"]
    assert (facts["schedule"], facts["num_ranks"]) == (str(path), 4)


def test_checkpoints_are_those_of_any_run(tmp_path: Path):
    whole, part = tmp_path / "whole.pt", tmp_path / "part.pt"
    driven, here = ["--controller", "local"], ["--transport", "local"]
    uninterrupted = start("--steps", 6, "--save", whole, *here)
    start("--steps", 2, "--save", part, *here)
    resumed = ["-m", 4, "--resume", part, "--save", part]
    train(*resumed, *driven, "--steps", 4, "--schedule", "1f1b", "-p", 4)
    result = train(*resumed, *driven, "--steps", 6, "--check", "--json")
    facts = json.loads(result.stdout)
    assert (facts["first_step"], facts["last_step"]) == (5, 6)
    assert facts["check"]["equal"]
    assert facts["last_loss"] == uninterrupted["last_loss"]
    assert_same_files(part, whole)


def test_a_plan_is_gone_on_with(tmp_path: Path):
    options = ["--schedule", "gpipe", "--steps", 8, "--check"]
    planning = ["--plan", "--plan-after", 2, "--plan-deadline", 1, "--memory", "1x"]
    folder = tmp_path / "profile"
    found = start(*options, *planning, "--controller", "local", "--profile", folder)
    assert found["check"]["equal"]
    assert found["last_loss"] == start(*options, "--transport", "local")["last_loss"]
    assert (folder / "plan.json").exists()
    assert (folder / "profile.json").exists()


@pytest.mark.monarch
def test_ranks_as_actors_give_the_same(tmp_path: Path):
    options = ["--schedule", "zbv", "--steps", 9, "--check"]
    one, other, folder = tmp_path / "one.pt", tmp_path / "other.pt", tmp_path / "profile"
    planning = ["--plan", "--plan-after", 3, "--plan-deadline", 1, "--profile", folder]
    found = start(*options, "--controller", "monarch", "--save", one, *planning)
    here = start(*options, "--transport", "local", "--save", other)
    for name in ("first_loss", "last_loss", "held_out_loss", "check"):
        assert found[name] == here[name]
    assert_same_files(one, other)
    assert (folder / "profile.json").exists()


def test_the_command_of_the_documentation_works():
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
    (command,) = re.findall(r"^fullbore (train --controller local .*)$", text, re.MULTILINE)
    result = CliRunner().invoke(main, command.split())
    assert result.exit_code == 0, result.output
    assert "at step 2" in result.stdout


def test_what_does_not_go_together_is_refused(monkeypatch: pytest.MonkeyPatch):
    for engine, transport in [("local", "shm"), ("local", "p2p"), ("monarch", "local")]:
        result = train(*TINY, "-m", 4, "--controller", engine, "--transport", transport)
        assert result.exit_code == 2
        assert f"--transport {transport}: " in result.stderr
    for name, value in [("RANK", 0), ("WORLD_SIZE", 2), ("MASTER_ADDR", "a"), ("MASTER_PORT", 1)]:
        monkeypatch.setenv(name, str(value))
    result = train(*TINY, "-m", 4, "--controller", "local")
    assert result.exit_code == 2
    assert "--controller: torchrun has started several processes" in result.stderr


def test_without_monarch_it_says_what_to_install():
    # In a process of its own: this one may have Monarch at work.
    program = "import sys; sys.modules['monarch'] = None; from fullbore.cli import main; main()"
    options = [*TINY, "-m", 4, "--text", SOURCE, "--controller", "monarch"]
    result = subprocess.run(
        [sys.executable, "-c", program, "train", *map(str, options)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "pip install 'fullbore[monarch]'" in result.stderr
    assert "Traceback" not in result.stderr
