"""``fullbore profile``."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fullbore.cli.app import main
from fullbore.formats import parse_action
from fullbore.passes import lower
from fullbore.schedules import build
from fullbore.sim import Profile, Sample, load_costs, save_profile


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Two steps of one stage after another: F 10 ms, B 20 ms, 1 ms a message."""
    rows = [
        [("0F0", 0, 0, 10), ("0SEND_F0", 10, 10, 10), ("0B0", 10, 42, 62)],
        [("1F0", 0, 11, 21), ("1B0", 21, 21, 41), ("1SEND_B0", 41, 41, 41)],
    ]

    def step(begin: float) -> list[list[Sample]]:
        return [
            [
                Sample(
                    parse_action(name),
                    (begin + start) / 1e3,
                    (begin + ready) / 1e3,
                    (begin + end) / 1e3,
                )
                for name, start, ready, end in rank
            ]
            for rank in rows
        ]

    schedule = lower(build("1f1b", num_ranks=2, num_microbatches=1))
    save_profile(Profile(schedule, (step(0), step(100))), tmp_path / "profile.json")
    return str(tmp_path / "profile.json")


def test_a_report(path: str):
    assert run("profile", path).output == (
        "1f1b: 1 steps, median 62.000 ms; predicted 62.000 ms, a step typically 0.0% off\n"
        "\n"
        "action  samples  predicted ms  measured ms  typically off\n"
        "0F            1        10.000       10.000           0.0%\n"
        "0B            1        20.000       20.000           0.0%\n"
        "1F            1        10.000       10.000           0.0%\n"
        "1B            1        20.000       20.000           0.0%\n"
        "\n"
        "rank  compute ms  receiving  sending  overhead    idle\n"
        "   0      30.000     32.000    0.000     0.000   0.000\n"
        "   1      30.000     11.000    0.000     0.000  21.000\n"
    )


def test_other_costs_and_json(path: str, tmp_path: Path):
    found = json.loads(run("profile", path, "--costs", "0.01,0.01,0.01", "--json").output)
    assert found["predicted"] == pytest.approx(0.06)
    assert found["error"] == pytest.approx(2 / 62)
    assert found["actions"][0]["kind"] == "F"
    assert [rank["idle"] for rank in found["ranks"]] == pytest.approx([0, 0.021])


def test_costs_are_written(path: str, tmp_path: Path):
    assert run("profile", path, "-o", str(tmp_path / "costs.json")).exit_code == 0
    costs = load_costs(tmp_path / "costs.json")
    assert costs.F == pytest.approx([0.01, 0.01])  # noqa: SIM300 - F is no constant
    assert costs.latency == pytest.approx({(0, 1): 0.001, (1, 0): 0.001})
    result = run("profile", path, "-o", str(tmp_path / "none" / "costs.json"))
    assert result.exit_code == 2
    assert "cannot be written" in result.output


def test_traces_of_torch(tmp_path: Path):
    for rank, names in enumerate((["PP:0F0", "PP:0B0"], ["PP:1F0", "PP:1B0"])):
        events = [{"ph": "X", "name": n, "ts": 10.0 * i, "dur": 8.0} for i, n in enumerate(names)]
        (tmp_path / f"{rank}.json").write_text(json.dumps({"traceEvents": events}))
    files = [str(tmp_path / "0.json"), str(tmp_path / "1.json")]
    sized = ["--schedule", "1f1b", "--ranks", "2", "--microbatches", "1"]
    assert "1f1b: 1 steps" in run("profile", *files, *sized).output
    assert "say --schedule" in run("profile", *files).output


@pytest.mark.parametrize("name", ["none.json", "bad.json"])
def test_bad_files(name: str, tmp_path: Path):
    (tmp_path / "bad.json").write_text("{}")
    result = run("profile", str(tmp_path / name))
    assert result.exit_code == 2
    assert name in result.output
