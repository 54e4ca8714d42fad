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


def test_the_file_of_a_plan_brings_its_costs_along():
    report = json.loads(run(*SIZE, "-v", "2", "-o", "best.json", "--json").stdout)
    others = (["--costs", "1,1,1"], ["--costs", "best.json"], list[str]())
    found = [
        json.loads(CliRunner().invoke(main, ["simulate", "best.json", *other, "--json"]).stdout)
        for other in others
    ]
    best = report["candidates"][0]["makespan"]
    assert [f["makespan"] == pytest.approx(best) for f in found] == [False, True, True]
    pages = []
    for n, other in enumerate(others):
        CliRunner().invoke(main, ["show", "best.json", *other, "-o", f"{n}.html"])
        pages.append(Path(f"{n}.html").read_text())
    assert pages[0] != pages[1] == pages[2]


def test_a_multiple_of_memory_that_nobody_knows():
    save_costs(TableCosts(F=[1, 1], I=[1, 1], W=[1, 1], message_bytes=8), "costs.json")
    sizes = "-p", "2", "-m", "4", "-v", "1", "--effort", "1", "--costs", "costs.json"
    for option in ("--memory", "--frontier"):
        assert "costs with activation_bytes" in run(*sizes, option, "1x", code=2).stderr


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


LAYERS = ("--layer-costs", "layers.json", "-p", "2", "-m", "3", "--effort", "1", "-v", "1,2")


@pytest.fixture
def _layers() -> None:
    costs = TableCosts(
        F=[1, 4, 4, 4, 4, 4, 4, 6],
        I=[0, 4, 4, 4, 4, 4, 4, 6],
        W=[2, 3, 3, 3, 3, 3, 3, 6],
        activation_bytes=[0, 5, 5, 5, 5, 5, 5, 4],
        static_bytes=[9, 2, 2, 2, 2, 2, 2, 9],
        message_bytes=1,
    )
    save_costs(costs, "layers.json")


@pytest.mark.usefixtures("_layers")
def test_layers_are_split_and_an_even_split_is_told():
    lines = run(*LAYERS, "-o", "plan.json").stdout.splitlines()
    assert any(line.startswith("layers of the stages, the best of ") for line in lines)
    assert any(line.startswith(("split by number", "that is the split")) for line in lines)
    saved = load_plan("plan.json")
    assert sum(saved.costs.F) == 31  # type: ignore[arg-type]
    assert [n for first, end in saved.proof["layers"] for n in range(first, end)] == [*range(8)]
    report = json.loads(run(*LAYERS, "--no-joint", "--json").stdout)
    split = report["partition"]
    assert split["splits_tried"] == 1
    assert [n for first, end in split["stages"] for n in range(first, end)] == [*range(8)]
    assert max(split["load"]) <= max(split["even"]["load"])
    best, even = report["candidates"][0], split["even"]["best"]
    assert best["makespan"] <= even["makespan"]
    joint = json.loads(run(*LAYERS, "--joint", "--json").stdout)
    assert joint["partition"]["splits_tried"] > 3
    assert joint["candidates"][0]["makespan"] <= best["makespan"]


def test_a_transformer_is_planned_by_formula():
    size = ("--model", "6,64,4,32,500", "-p", "2", "-m", "3", "-v", "1", "--effort", "0")
    report = json.loads(run(*size, "--memory", "1x", "--json").stdout)
    assert report["partition"]["stages"][-1][1] == 8
    assert all(max(c["peak_memory"]) <= report["memory"] for c in report["candidates"])


def test_it_says_why():
    report = json.loads(run(*SIZE, "--memory", "0.75x", "-v", "2", "--json").stdout)
    why = report["why"]
    assert why["bound_by"] in ("work", "window", "area", "chain", "machine")
    best = report["candidates"][0]
    idle = sum(why["idle"].values())
    assert idle == pytest.approx(best["makespan"] - 4 * (4 + 4 + 2))
    text = run(*SIZE, "--memory", "0.75x", "-v", "2").stdout
    assert "until its first backward" in text
    assert "it holds 1.5 of 1.5 allowed" in text


def test_a_frontier():
    limits = ("--frontier", "0.25x,1x,0.75x", "-v", "1,2")
    lines = run(*SIZE, *limits).stdout.splitlines()
    assert lines[0].split()[:2] == ["memory", "best"]
    assert lines[1].split() == ["0.5", "nothing", "fits"]
    assert [line.split()[0] for line in lines[1:]] == ["0.5", "1.5", "2"]
    report = json.loads(run(*SIZE, *limits, "--json").stdout)
    nothing, some, more = report["points"]
    assert nothing["best"] is None
    assert "no placement can be" in nothing["reason"]
    assert some["best"]["makespan"] >= more["best"]["makespan"] >= more["bound"] * (1 - 1e-9)
    assert some["bubble_rate"] >= some["least_bubble_rate"] - 1e-9
    assert {family["schedule"] for family in report["families"]} >= {"1f1b", "v_min"}


@pytest.mark.parametrize("ending", ["svg", "png", "html"])
def test_a_frontier_is_drawn(ending: str):
    arguments = ("--frontier", "-v", "1", "-o", f"front.{ending}")
    assert len(run(*SIZE, *arguments, "--effort", "0").stdout.splitlines()) == 9
    assert Path(f"front.{ending}").stat().st_size > 1000


@pytest.mark.usefixtures("_layers")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "1,2"), "give whole numbers: layers, hidden size"),
        (("--model", "4,8,2,8,9,9"), "give whole numbers: layers, hidden size"),
        (("--model", "0,2,2,2"), "layers must be a whole number from 1 to 100,000; got 0"),
        (("--model", f"4,{10**200},2,2"), "hidden must be a whole number from 1 to"),
        (("--layer-costs", "no.json"), "no.json: cannot be read"),
        (("--layer-costs", "layers.json", "--model", "4,8,2,8"), "give one of --costs"),
        (("--joint",), "--joint splits layers"),
        (("--frontier", "1y"), "give bytes, or 0.75x"),
        (("--frontier", "1x", "--memory", "1x"), "--frontier has memory limits of its own"),
        (("--frontier", "1x", "-o", "plan.json"), "ends in .svg, .png, .html"),
        (("--frontier", "1x", "-o", "no/such/front.svg"), "cannot be written"),
    ],
)
def test_what_goes_not_together(arguments: tuple[str, ...], message: str):
    base = ("-p", "2", "-m", "4", "--effort", "0", "-v", "1")
    assert message in run(*base, *arguments, code=2).stderr
