"""``fullbore show`` into files."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fullbore.cli import main
from fullbore.view.files import WRITERS

FAMILY = ("1f1b", "-p", "2", "-m", "3")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def show(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["show", *FAMILY, *arguments])


@pytest.mark.parametrize("ending", [*WRITERS, ".txt"])
def test_every_ending_is_written_and_nothing_printed(in_a_folder: Path, ending: str):
    result = show("-o", f"a{ending}")
    assert (result.exit_code, result.output) == (0, "")
    assert [path.name for path in in_a_folder.iterdir()] == [f"a{ending}"]


def test_a_txt_holds_the_grid():
    show("-o", "a.txt", "--width", "60")
    assert Path("a.txt").read_text("utf-8") == show("--width", "60").stdout


def test_costs_say_when(in_a_folder: Path):
    show("-o", "a.trace.json", "--costs", "3,1,1,0.5")
    events = json.loads(Path("a.trace.json").read_text("utf-8"))["traceEvents"]
    (first,) = (event for event in events if event["name"] == "1F0" and event["ph"] == "X")
    assert first["ts"] == 3500


def test_costs_come_from_files_with_their_unit():
    # What `fullbore.sim.save_costs` writes; its own tests tell what it may hold.
    from fullbore.sim import TableCosts, save_costs

    save_costs(TableCosts(F=1, I=1, W=1, unit="ms"), "costs.json")
    show("-o", "a.svg", "--costs", "costs.json")
    assert "time (ms)" in [*ET.parse("a.svg").getroot().itertext()]


def test_pictures_have_options():
    plain = show("-o", "a.svg")
    assert plain.exit_code == 0
    for options in (["--dark"], ["--memory"], ["--no-messages"], ["--width", "700"]):
        assert show("-o", "b.svg", *options).exit_code == 0
        assert Path("a.svg").read_text("utf-8") != Path("b.svg").read_text("utf-8"), options
    assert show("-o", "b.svg", "--light", "--messages").exit_code == 0
    assert Path("a.svg").read_text("utf-8") == Path("b.svg").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "a.json"], "a trace is a .trace.json"),
        (["-o", "a.gif"], "pictures end in .svg, .png, .html, .trace.json"),
        (["-o", "a.html", "--memory"], "have no option 'memory'"),
        (["-o", "a.svg", "--width", "7"], "320 pixels or more, got 7"),
        (["-o", "a.svg", "--compact"], "--compact is for the terminal and .txt"),
        (["-o", "a.svg", "--json"], "give one of the two"),
        (["-o", "a.txt", "--dark"], "--dark is for pictures"),
        (["--costs", "1,1,1"], "--costs is for pictures"),
        (["--memory"], "--memory is for pictures"),
        (["-o", "no/such/folder/a.svg"], "cannot be written: No such file or directory"),
    ],
)
def test_what_makes_no_sense_is_refused(in_a_folder: Path, arguments: list[str], message: str):
    result = show(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not list(in_a_folder.iterdir())


def test_what_cannot_run_has_no_picture():
    Path("a.csv").write_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "utf-8")
    result = CliRunner().invoke(main, ["show", "a.csv", "-o", "a.svg"])
    assert result.exit_code == 1
    assert "a.csv is not valid" in result.stderr
    assert not Path("a.svg").exists()


def test_a_file_gives_the_picture_its_name():
    Path("mine.csv").write_text("0F0,0B0\n", "utf-8")
    assert CliRunner().invoke(main, ["show", "mine.csv", "-o", "a.svg"]).exit_code == 0
    assert any(
        text.startswith("mine.csv: 1 rank") for text in ET.parse("a.svg").getroot().itertext()
    )
