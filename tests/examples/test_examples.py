"""The examples run, and what the scripts print is the same wherever the ranks are."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.torch

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = EXAMPLES / "controller.py"
MAX_LINES = 60
SECONDS = 200


@pytest.fixture(scope="module")
def in_one_process() -> str:
    return run(SCRIPT, "--steps", "4")


def run(*command: object) -> str:
    """What a script prints."""
    found = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_the_script_trains_looks_and_saves(in_one_process: str):
    steps, rest = in_one_process.splitlines()[:4], in_one_process.splitlines()[4:]
    assert [line.partition(":")[0] for line in steps] == [f"step {n}" for n in range(4)]
    assert [line.partition(":")[0] for line in rest] == ["held out", "3.2.weight", "loaded"]
    assert rest[-1] == "loaded: {'steps': 4}"


@pytest.mark.monarch
def test_on_actors_of_which_one_dies_it_prints_the_same(in_one_process: str):
    assert run(SCRIPT, "--engine", "monarch", "--kill-one", "--steps", "4") == in_one_process


def test_the_script_is_short():
    assert len(SCRIPT.read_text("utf-8").splitlines()) < MAX_LINES


def test_the_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path(str(EXAMPLES / "controller_notebook.py"))
    printed = capsys.readouterr().out
    assert "3I0 cannot run yet: rank 0 comes to 0SEND_F0 first" in printed
    assert b"</svg>" in (tmp_path / "timeline.svg").read_bytes()
    at_once, by_steps = (line for line in printed.splitlines() if line.startswith("loss: "))
    assert at_once == by_steps
    assert torch.isfinite(found["stages"][3][0].weight.grad).all()
