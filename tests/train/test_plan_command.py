"""`fullbore train --plan`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from fullbore.cli import main
from fullbore.plan import load_plan

pytestmark = pytest.mark.torch

TINY = ["--width", 16, "--heads", 2, "--sequence-length", 16, "--batch-size", 6, "-m", 6]
UNEVEN = ["--split", "1,3,1,3", "-p", 2, "--plan", "--plan-after", 2, "--plan-deadline", 3]
SOURCE = Path(__file__).parent


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def train(*options: object, transport: str = "local") -> Result:
    arguments = ["train", "--transport", transport, "--text", str(SOURCE), *map(str, options)]
    return CliRunner().invoke(main, arguments)


def facts(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("name", ["v_min", "looped_bfs", "interleaved_zero_bubble"])
def test_a_planned_run_trains_the_same_model(name: str, tmp_path: Path):
    options = [*TINY, "--lr", 0.01, "--steps", 7, "--json"]
    found = facts(
        train(*options, *UNEVEN, "--schedule", name, "--memory", "0.9x", "--check",
              "--profile", tmp_path)
    )  # fmt: skip
    plan = found["plan"]
    assert (plan["before"], plan["step"]) == (name, 4)
    assert max(plan["peak_memory"]) <= plan["memory"]
    assert plan["predicted_after"] >= plan["bound"] * (1 - 1e-9)
    assert plan["predicted_after"] <= plan["predicted_best_family"]
    assert found["last_step"] == 7
    assert not found["check"]["wrong"]
    if name != "looped_bfs":  # which adds up in another order, until the plan does
        alone = facts(train(*options, "--schedule", "gpipe", "-p", 1, "--layers", 8))
        assert found["check"]["relative"] < 1e-5
        assert found["last_loss"] == pytest.approx(alone["last_loss"], rel=1e-5)
    saved = load_plan(tmp_path / "plan.json")
    assert saved.schedule.placement.num_stages == 4
    assert saved.proof["memory"] == plan["memory"]
    assert saved.costs.static_bytes[1] > saved.costs.static_bytes[0]  # type: ignore[index]


def test_what_was_planned_is_told():
    result = train(*TINY, *UNEVEN, "--schedule", "v_min", "--memory", "2x", "--steps", 6)
    assert result.exit_code == 0, result.output
    assert "planned after step 4 in" in result.stderr
    assert "v_min: predicted" in result.stderr
    assert "best family that fits, " in result.stderr


def test_a_resumed_run_plans_too(tmp_path: Path):
    path = tmp_path / "x.pt"
    facts(train(*TINY, "--layers", 8, "--steps", 2, "--save", path, "--json"))
    plan = ["--plan", "--plan-after", 1, "--plan-deadline", 1]
    options = ["--resume", path, "--save", path, "-m", 6, "--schedule", "zbv", *plan, "--check"]
    found = facts(train(*options, "--steps", 6, "--json"))
    assert (found["first_step"], found["plan"]["step"], found["last_step"]) == (3, 4, 6)
    assert not found["check"]["wrong"]
    assert torch.load(path, weights_only=True)["step"] == 6


@pytest.mark.gloo
@pytest.mark.slow
def test_processes_go_on_with_the_plan():
    options = [*TINY, *UNEVEN, "--schedule", "v_min", "--memory", "2x", "--steps", 8, "--check"]
    found = facts(train(*options, "--json", transport="shm"))
    assert found["plan"]["after"] == found["schedule"]
    assert found["plan"]["measured_after"] == found["step_seconds"]["measured"] > 0
    assert found["check"]["relative"] < 1e-5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plan", "--schedule", "gpipe", "-p", 1], "with 1 rank there is nothing to plan"),
        (["--plan", "--steps", 8, "--plan-after", 4], "so --steps must be 9 at least; it is 8"),
        (["--memory", "1x"], "--plan-after, --plan-deadline and --memory need --plan"),
        (["--plan", "--memory", "0"], "give bytes, or 0.75x"),
        (["--split", "1,x"], "give numbers of layers such as 1,3,3,1"),
        (["--split", "3,3"], "--split 3,3: give each of the 4 stages some of the 6 layers"),
        (["--split", "1,1,1,1", "--layers", 8], "some of the 8 layers"),
        (["--split", "0,1,1,2"], "give each of the 4 stages some"),
    ],
)
def test_nonsense_is_refused_before_anything_starts(options: list[object], message: str):
    result = train(*options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "starting" not in result.stderr


def test_too_little_memory_ends_the_run():
    result = train(*TINY, *UNEVEN, "--schedule", "v_min", "--memory", 1000, "--steps", 6)
    assert result.exit_code == 2
    assert "--memory is 1,000 bytes here; a rank needs" in result.stderr
