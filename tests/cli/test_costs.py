"""``fullbore simulate`` and ``fullbore compare``."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fullbore.cli.app import main
from fullbore.schedules import build
from fullbore.sim import TableCosts, UniformCosts, save_costs, simulate


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def fine(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_simulate():
    assert fine("simulate", "1f1b", "-p", "2", "-m", "2", "--costs", "1,1,1,0.5") == (
        "1f1b: 2 ranks, 2 stages, 2 microbatches\n"
        "costs of a stage: F 1, I 1, W 1, B 2, latency 0.5\n"
        "\n"
        "makespan 10, bubble 40.00%; span 10, bubble 40.00%\n"
        "4 messages between ranks\n"
        "\n"
        "rank  busy  idle: warm-up  steady  cool-down  exposed messages\n"
        "   0     6              3       0          1                 1\n"
        "   1     6            1.5       0        2.5               0.5\n"
        "\n"
        "critical path, 8 actions: 0F0 0SEND_F0 1F0 1B0 1F1 1B1 1SEND_B1 0B1\n"
    )


def test_simulate_shows_memory_where_the_costs_tell_and_a_path_in_full_if_asked(tmp_path: Path):
    path = tmp_path / "costs.json"
    save_costs(TableCosts(F=[1, 2], I=1, W=1, activation_bytes=8, message_bytes=2, unit="ms"), path)
    output = fine("simulate", "1f1b", "-p", "2", "-m", "8", "--costs", str(path))
    assert "costs of a stage: F 1 to 2, I 1, W 1, B 2 (ms)" in output
    assert "peak bytes" in output
    assert "16 messages between ranks, 32 bytes" in output
    assert "more (--critical-path)" in output
    whole = fine("simulate", "1f1b", "-p", "2", "-m", "8", "--costs", str(path), "--critical-path")
    assert whole.rstrip().endswith("0B7")


def test_simulate_as_json():
    found = json.loads(fine("simulate", "zbv", "-p", "4", "-m", "8", "--json"))
    assert (found["name"], found["makespan"], found["span"]) == ("zbv_zero_bubble", 51, 48)
    assert found["idle"][1] == {"warm_up": 1, "steady": 0, "cool_down": 2}
    assert found["peak"][0] == {"bytes": 0, "action": None}
    assert found["critical_path"][0] == "0F0"


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ("1,2", "costs are three or four numbers"),
        ("none.json", "No such file"),
        ("1,-2,3", "I must be a number of 0 or more"),
    ],
)
def test_bad_costs_are_wrong_usage(costs: str, message: str):
    result = run("simulate", "1f1b", "-p", "2", "-m", "2", "--costs", costs)
    assert result.exit_code == 2
    assert message in result.output


def test_costs_of_other_stages_are_refused(tmp_path: Path):
    path = tmp_path / "costs.json"
    save_costs(TableCosts(F=[1, 2], I=1, W=1), path)
    result = run("simulate", "zbv", "-p", "2", "-m", "2", "--costs", str(path))
    assert result.exit_code == 2
    assert "F has 2 numbers for 4 stages" in result.output


def test_a_schedule_that_cannot_run(tmp_path: Path):
    (tmp_path / "bad.csv").write_text("0B0,0F0\n")
    result = run("simulate", str(tmp_path / "bad.csv"))
    assert result.exit_code == 1
    assert "0B0" in result.output


def test_compare():
    lines = fine("compare", "-p", "4", "-m", "8", "-v", "1,2", "--memory", "1x").splitlines()
    head, *rows = (line.split() for line in lines)
    assert head[:3] == ["schedule", "stages/rank", "makespan"]
    assert rows[0] == ["interleaved_zero_bubble", "2", "25.5", "5.9%", "25.5", "4", "112", "yes"]
    fits = [row[-1] for row in rows]
    assert fits == sorted(fits, reverse=True)  # what doesn't fit comes last
    assert {row[0] for row in rows} >= {"gpipe", "1f1b", "dualpipev"}


def test_compare_as_json():
    found = json.loads(fine("compare", "-p", "2", "-m", "4", "--costs", "2,2,2,1", "--json"))
    times = [entry["makespan"] for entry in found]
    assert times == sorted(times)
    assert {(e["schedule"], e["stages_per_rank"]) for e in found} >= {
        ("1f1b", 1),
        ("zbv_zero_bubble", 2),
    }
    one = next(e for e in found if e["schedule"] == "1f1b")
    assert (one["peak_memory"], one["messages"], one["fits"]) == (2, 8, True)


def test_compare_some():
    size = ("-p", "4", "-m", "16", "--costs", "18,18,9,1")
    lines = fine("compare", "1f1b", "zb:limit=8", "ZB", "gis:group_size=2", *size, "-v", "1,2")
    rows = {(row[0], row[1]) for row in map(str.split, lines.splitlines()[1:])}
    assert rows == {
        *(("1f1b", "1"), ("zb", "1"), ("zb:limit=8", "1")),
        *(("gis:group_size=2", "1"), ("gis:group_size=2", "2")),
    }


def test_families_that_take_costs_are_made_for_them_and_for_the_memory():
    size = ("-p", "4", "-m", "16", "-v", "1", "--costs", "18,18,9,1", "--json")
    spans = [
        json.loads(fine("compare", "zb", *size, *memory))[0]["span_bubble_rate"]
        for memory in (("--memory", "2x"), (), ("--memory", "0.75x"))
    ]
    costs = UniformCosts(F=18, I=18, W=9, latency=1)
    wanted = [
        simulate(
            build("zb", num_ranks=4, num_microbatches=16, costs=costs, limit=limit), costs
        ).span_bubble_rate
        for limit in (8, 4, 3)
    ]
    assert spans == pytest.approx(wanted)
    assert spans == sorted(spans)
    text = fine("simulate", "zb:limit=8", "-p", "4", "-m", "16", "--costs", "18,18,9,1", "--json")
    assert json.loads(text)["span_bubble_rate"] == spans[0]


def test_compare_in_bytes(tmp_path: Path):
    path = tmp_path / "costs.json"
    save_costs(TableCosts(F=[1, 2], I=1, W=1, activation_bytes=[30, 10]), path)
    text = ("compare", "-p", "2", "-m", "4", "--costs", str(path), "--memory")
    rows = [line.split() for line in fine(*text, "60").splitlines()[1:]]
    assert {row[0]: row[-1] for row in rows if row[1] == "1"}["gpipe"] == "no"
    assert all(row[1] == "1" for row in rows)  # costs of two stages
    assert fine(*text, "1x") == fine(*text, "60")
    save_costs(TableCosts(F=[1, 2], I=1, W=1), path)  # without bytes everything fits
    assert fine(*text, "60").count("\nzb ") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-v", "0"), "give numbers such as 1,2,4"),
        (("-v", "a"), "give numbers such as 1,2,4"),
        (("--memory", "lots"), "give bytes, or 0.75x"),
        (("--memory", "-1x"), "give bytes, or 0.75x"),
        (("nosuch",), "there is no family 'nosuch'. Choose one of gpipe"),
        (("zbv", "-v", "1"), "zbv, 1 a rank: zbv_zero_bubble: stages_per_rank must be 2; got 1"),
        (("zb", "-v", "1", "--memory", "0.2x"), "zb, 1 a rank: memory: rank 0 needs 1 at least"),
    ],
)
def test_bad_comparisons(arguments: tuple[str, ...], message: str):
    result = run("compare", "-p", "2", "-m", "2", *arguments)
    assert result.exit_code == 2
    assert message in result.output
