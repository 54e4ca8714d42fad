"""``fullbore plan``."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fullbore.cli import main
from fullbore.formats import load
from fullbore.plan import load_plan
from fullbore.sim import TableCosts, UniformCosts, save_costs, simulate

SIZE = ("--costs", "4,4,2,0.5", "-p", "2", "-m", "4", "--effort", "1")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["plan", *arguments])
    assert result.exit_code == code, result.output
    return result


def test_it_prints_candidates_and_why():
    lines = run(*SIZE, "-p", "4", "-m", "5", "--memory", "0.75x", "-v", "2").stdout.splitlines()
    assert lines[0].split()[:4] == ["schedule", "placement", "stages/rank", "makespan"]
    assert any(line.startswith("plan ") for line in lines)
    assert any(line.startswith("v_min ") for line in lines)
    assert any("No schedule on this placement takes less than" in line for line in lines)
    assert lines[-1].startswith("effort 1 reached")


def test_the_best_comes_first():
    report = json.loads(run(*SIZE, "--memory", "1x", "--json").stdout)
    lengths = [candidate["makespan"] for candidate in report["candidates"]]
    assert lengths == sorted(lengths)
    assert lengths[0] >= report["bound"] * (1 - 1e-9)
    assert report["memory"] == 2
    assert all(max(c["peak_memory"]) <= 2 + 1e-9 for c in report["candidates"])


@pytest.mark.parametrize("ending", ["json", "csv", "txt"])
def test_it_writes_the_best(ending: str):
    report = json.loads(run(*SIZE, "-v", "2", "-o", f"best.{ending}", "--json").stdout)
    schedule = load(f"best.{ending}")
    costs = UniformCosts(F=4, I=4, W=2, latency=0.5)
    assert simulate(schedule, costs).makespan == report["candidates"][0]["makespan"]


def test_it_draws_the_best():
    run(*SIZE, "-o", "best.html")
    assert Path("best.html").read_text().startswith("<!DOCTYPE html>")


def test_activations_and_memory():
    found = run(
        *SIZE, "--activation-bytes", "8,2", "--memory", "0.75x", "-v", "2", "-o", "plan.json"
    )
    assert "plan" in found.stdout
    assert load_plan("plan.json").proof["memory"] == 12
    assert load_plan("plan.json").costs.kept_bytes == (1, 1, 1, 1)


def test_costs_by_stage_and_what_is_static():
    costs = TableCosts(F=[2, 1, 1, 2], I=2, W=1, activation_bytes=3, static_bytes=5)
    save_costs(costs, "costs.json")
    size = ("--costs", "costs.json", "-p", "2", "-m", "3", "--effort", "1")
    report = json.loads(run(*size, "--memory", "1x", "--json").stdout)
    assert report["memory"] == 2 * 6 + 10
    assert report["left_out"][0].startswith("linear, 1 a rank: costs: F has 4 numbers")
    result = run(*size, "--activation-bytes", "1,1", code=2)
    assert "for costs given as numbers" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--memory", "0"), "give bytes, or 0.75x"),
        (("--activation-bytes", "1,2"), "give what is held from F to I"),
        (("-v", "0"), "give numbers such as 1,2,4"),
        (("--placement", "ring"), "a placement is loop or vee; got 'ring'"),
        (("-o", "plan.doc"), ".doc"),
        (("-o", "no/such/plan.json"), "cannot be written"),
        (("--memory", "0.1"), "no placement can be"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], message: str):
    assert message in run(*SIZE, *arguments, code=2).stderr
