"""What each verb prints and how it exits."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from fullbore.cli import main
from fullbore.cli.diff import Change, compare
from fullbore.formats import dumps, load, save
from fullbore.ir import Action, Form, Kind
from fullbore.passes import lower
from fullbore.schedules import FAMILIES, build
from fullbore.verify import verify
from fullbore.view.grid import render_grid

SIZE = ["--ranks", "4", "--microbatches", "8"]
DEADLOCK = "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the commands run in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result


def test_list_names_every_family():
    names, options = run("list").stdout.split("\n\n")
    assert [line.split()[0] for line in names.splitlines()[1:]] == [*FAMILIES]
    found = json.loads(run("list", "--json").stdout)
    assert [family["name"] for family in found] == [*FAMILIES]
    of = {name: [*family.options] for name, family in FAMILIES.items() if family.options}
    assert {f["name"]: [*f["options"]] for f in found if f["options"]} == of
    assert [line.split()[0] for line in options.splitlines()[1:]] == [*of]
    assert [f["name"] for f in found if f["uses_costs"]] == ["zb", "zbv_greedy"]


def test_a_family_takes_options():
    size = ("-p", "4", "-m", "8")
    schedule = build("gis", num_ranks=4, num_microbatches=8, group_size=2)
    shown = run("show", "gis:group_size=2", *size, "--width", "90").stdout
    assert shown == render_grid(schedule, width=90) + "\n"
    run("verify", "GIS:group_size=2", *size)
    assert "0F0" in run("lower", "zb:limit=2", *size).stdout
    assert run("diff", "gis", "gis:group_size=4", *size).exit_code == 0
    assert run("diff", "gis", "gis:group_size=2", *size, code=1).exit_code == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("gis:size=2", "Error: gis: there is no option 'size'; it has these: group_size (microb"),
        ("gis:group_size", "Error: gis: options are written as name=number, with commas between"),
        ("1f1b:limit=2", "Error: 1f1b: there is no option 'limit'; it has these: none"),
        ("zb:limit=0", "Error: zb: limit must be at least 1; got 0"),
        ("zb:limit=2,limit=3", "Error: zb: an option is given twice: 'zb:limit=2,limit=3'"),
        ("nosuch:limit=2", "Error: schedule: there is no family 'nosuch'. Choose one of gpipe"),
    ],
)
def test_wrong_options(source: str, message: str):
    assert message in run("show", source, "-p", "4", "-m", "8", code=2).output


@pytest.mark.parametrize("name", [*FAMILIES])
def test_show_draws_every_family(name: str):
    schedule = build(name, num_ranks=4, num_microbatches=8)
    assert (
        run("show", name, *SIZE, "--width", "90").stdout == render_grid(schedule, width=90) + "\n"
    )


def test_show_takes_the_options_of_the_grid():
    schedule = build("interleaved_1f1b", num_ranks=2, num_microbatches=4, stages_per_rank=3)
    arguments = ["show", "Interleaved1F1B", "-p", "2", "-m", "4", "-v", "3", "--width", "0"]
    for options, expected in (
        (["--compact"], render_grid(schedule, width=0, compact=True)),
        (["--color"], render_grid(schedule, width=0, color=True)),
        (["--lowered"], render_grid(lower(schedule), width=0)),
        (
            ["--lowered", "--no-reduce-grad"],
            render_grid(lower(schedule), width=0, reduce_grad=False),
        ),
    ):
        assert run(*arguments, *options).stdout == expected + "\n"


def test_show_draws_a_lowered_file_either_way():
    schedule = lower(build("1f1b", num_ranks=2, num_microbatches=2))
    save(schedule, "low.csv")
    listed = run("show", "low.csv").stdout
    assert listed.startswith("low.csv: 2 ranks")
    assert "step" in listed
    assert "time" in run("show", "low.csv", "--no-lowered").stdout


def test_show_takes_the_placement():
    text = run("show", "forward_only", "-m", "2", "--placement", "1,0").stdout
    assert "rank 0  ·   1F0" in text


def test_show_lists_what_cannot_run():
    Path("bad.csv").write_text(DEADLOCK)
    assert "cannot run" in run("show", "bad.csv").stdout
    report = json.loads(run("show", "bad.csv", "--json").stdout)
    assert report["timeline"] is None
    assert report["findings"]
    assert report["programs"][0] == ["0F0", "0B0", "0F1", "0B1"]


def test_show_warns_of_what_runs_but_is_not_valid():
    Path("twice.csv").write_text("0F0,0F0\n")
    result = run("show", "twice.csv")
    assert "rank 0  F0 F0" in result.stdout
    assert result.stderr == (
        "Warning: twice.csv is not valid (1 error); 'fullbore verify twice.csv' lists them\n"
    )
    report = json.loads(run("show", "twice.csv", "--json").stdout)
    assert [finding["rule"] for finding in report["findings"]] == ["duplicate"]
    assert report["timeline"]["makespan"] == 2
    assert run("show", "1f1b", *SIZE).stderr == ""


def test_show_as_json():
    report = json.loads(run("show", "dualpipev", *SIZE, "--json").stdout)
    assert report["schedule"]["num_stages"] == 8
    timeline = report["timeline"]
    assert timeline["makespan"] == 51
    assert timeline["bubble_rate_of_makespan"] == pytest.approx(3 / 51)
    assert timeline["ranks"][1][0] == {"action": "1F0", "start": 1, "end": 2}
    overlap = next(slot for slot in timeline["ranks"][0] if "parts" in slot)
    assert [part["action"] for part in overlap["parts"]] == ["0F7", "7B3"]


@pytest.mark.parametrize("variable", [None, "NO_COLOR"])
def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch, variable: str | None):
    from fullbore.cli.output import wants_color

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, "1")
    assert wants_color(None) is (variable is None)
    assert wants_color(False) is False
    assert wants_color(True) is True
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    assert wants_color(None) is False


def test_verify_accepts_a_good_schedule():
    assert "zbv: valid" in run("verify", "zbv", *SIZE).stdout
    report = json.loads(run("verify", "gpipe", *SIZE, "--json").stdout)
    assert report["valid"] is True
    assert report["model"] == "rendezvous"


def test_verify_prints_every_finding():
    Path("bad.csv").write_text(DEADLOCK)
    findings = verify(load("bad.csv"))
    text = run("verify", "bad.csv", code=1).stdout
    assert text.splitlines()[:-1] == [str(finding) for finding in findings]
    assert "bad.csv: not valid (" in text
    report = json.loads(run("verify", "bad.csv", "--json", code=1).stdout)
    assert [finding["rule"] for finding in report["findings"]] == [f.rule for f in findings]


def test_verify_asks_the_model_that_is_named():
    # A04: each rank sends before it receives.
    Path("crossing.csv").write_text(
        "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2SEND_F0,2RECV_F1,2F1,2SEND_F1\n"
        "1RECV_F0,1F0,1RECV_F1,1SEND_F0,1F1,1SEND_F1,3RECV_F0,3F0,3RECV_F1,3F1\n"
    )
    assert "rendezvous" in run("verify", "crossing.csv", code=1).stdout
    assert "buffered" in run("verify", "crossing.csv", "--model", "buffered").stdout


def test_lower_prints_and_writes():
    schedule = lower(build("zbv", num_ranks=2, num_microbatches=3))
    arguments = ["lower", "zbv", "-p", "2", "-m", "3"]
    assert run(*arguments).stdout == dumps(schedule, format="txt")
    assert run(*arguments, "--format", "csv").stdout == dumps(schedule, format="csv")
    assert run(*arguments, "-o", "low.json").stdout == ""
    assert load("low.json") == schedule


def test_lower_shards():
    text = run("lower", "zbv", "-p", "2", "-m", "3", "--shard").stdout
    assert "0UNSHARD" in text
    assert (
        text
        != run("lower", "zbv", "-p", "2", "-m", "3", "--shard", "--max-active-stages", "1").stdout
    )
    assert "UNSHARD" not in run("lower", "zbv", "-p", "2", "-m", "3").stdout


def test_lower_runs_the_passes_that_are_named():
    text = run("lower", "1f1b", "-p", "2", "-m", "2", "--pipeline", "split_backward").stdout
    assert "0I0 0W0" in text
    assert "form: compute" in text


def test_convert_keeps_the_schedule():
    schedule = build("zbv", num_ranks=2, num_microbatches=2)
    save(schedule, "a.csv")
    run("convert", "a.csv", "b.json")
    run("convert", "b.json", "c.csv", "--to-dialect", "monarch")
    run("convert", "c.csv", "d.txt", "--from-dialect", "monarch")
    assert load("d.txt") == schedule
    assert "3B0" in Path("c.csv").read_text()
    assert "3I0" in run("convert", "b.json").stdout


def test_convert_takes_what_a_csv_leaves_open():
    Path("a.csv").write_text("0F0,1F0\n")
    run("convert", "a.csv", "b.json", "--placement", "0,0", "--microbatches", "2")
    assert load("b.json").num_microbatches == 2
    assert "placement: 0 0" in run("convert", "a.csv", "--placement", "0,0").stdout
    result = run("convert", "b.json", "--placement", "0,1", code=2)
    assert "placement is 0 0 here, 0 1 was asked for" in result.stderr


def test_an_unknown_ending_is_one_message():
    Path("good.xlsx").write_text("")
    result = run("verify", "good.xlsx", code=2)
    assert result.stderr == (
        "Error: good.xlsx: the file's ending must be one of .csv, .json, .txt\n"
    )


def test_diff_says_where():
    Path("a.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    Path("b.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n")
    assert run("diff", "a.csv", "b.csv", code=1).stdout.splitlines() == [
        "- a.csv",
        "+ b.csv",
        "rank 1:",
        "  - step 1: 1B0",
        "  + step 2: 1B0",
    ]
    report = json.loads(run("diff", "a.csv", "b.csv", "--json", code=1).stdout)
    assert report["equal"] is False
    assert report["ranks"][0] == []
    assert len(report["ranks"][1]) == 2


@given(st.lists(st.sampled_from("abcdef"), max_size=12), st.lists(st.sampled_from("abcdef")))
def test_the_changes_lead_from_one_program_to_the_other(before: list[str], after: list[str]):
    one, two = ([Action(ord(letter), Kind.F, 0) for letter in text] for text in (before, after))
    found = [str(action) for action in one]
    for change in reversed(compare(tuple(one), tuple(two))):
        end = change.first_step + len(change.first)
        assert found[change.first_step : end] == change.first
        found[change.first_step : end] = change.second
    assert found == [str(action) for action in two]


def test_what_stays_in_order_is_no_change():
    one = build("1f1b", num_ranks=4, num_microbatches=20).programs[0]
    assert compare(one, one) == []
    assert compare(one[:7] + one[8:], one) == [Change(7, 7, [], [str(one[7])])]
    # Quadratic time would be seconds.
    two = build("gpipe", num_ranks=1, num_microbatches=3000).programs[0]
    assert sum(len(change.first) for change in compare(two, two[::2] + two[1::2])) == 2999


def test_diff_compares_a_file_with_a_family():
    save(build("1f1b", num_ranks=4, num_microbatches=8), "a.csv")
    assert run("diff", "a.csv", "1f1b", *SIZE).stdout == "the same 64 actions on 4 ranks\n"
    text = run("diff", "a.csv", "gpipe", "-p", "2", "-m", "4", code=1).stdout
    assert "ranks: - 4  + 2" in text
    assert "microbatches: - 8  + 4" in text


def test_diff_ignores_names():
    save(build("zbv", num_ranks=2, num_microbatches=2), "named.json")
    save(build("zbv", num_ranks=2, num_microbatches=2), "unnamed.csv")
    run("diff", "named.json", "unnamed.csv")
    assert load("unnamed.csv").form is Form.COMPUTE


def test_a_file_that_cannot_be_read_hides_no_family():
    for name in ("1f1b", "mine"):
        Path(name).write_text("")
    assert run("show", "1f1b", *SIZE).stdout.startswith("1f1b: 4 ranks")
    assert "must be one of .csv, .json, .txt" in run("show", "mine", *SIZE[2:], code=2).stderr


def test_the_dialect_is_that_of_the_files_that_have_a_choice():
    schedule = build("zbv", num_ranks=2, num_microbatches=2)
    save(schedule, "ours.json")
    save(schedule, "theirs.csv", dialect="monarch")
    run("diff", "theirs.csv", "ours.json", "--dialect", "monarch")
    assert run("convert", "ours.json", "--from-dialect", "monarch").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "1f1b"], "a family needs --ranks and --microbatches"),
        (["show", "nosuch", *SIZE], "'nosuch' is no .csv, .json or .txt file; schedule: there is"),
        (["show", "nosuch"], "there is no family 'nosuch'. Choose one of gpipe"),
        (["show", "n" * 5000], "there is no family"),
        (["show", "zbv", *SIZE, "--stages-per-rank", "3"], "stages_per_rank must be 2"),
        (["show", "1f1b", "-p", "0", "-m", "1"], "0 is not in the range"),
        (["show", "missing.csv"], "missing.csv: cannot be read: No such file"),
        (["show", "a.csv", "--ranks", "4"], "--ranks and --stages-per-rank are for families"),
        (["verify", "junk.csv"], "junk.csv, row 1, column 2: "),
        (["verify", "other.yaml"], "must be one of .csv, .json, .txt"),
        (
            ["show", "forward_only", "-m", "1", "--placement", "0,x"],
            "'0,x'; give the rank of every stage",
        ),
        (["show", "forward_only", "-m", "1", "--placement", "0,2"], "rank 1 holds no stage"),
        (["lower", "a.csv", "--pipeline", "nosuch"], "nosuch"),
        (["lower", "a.csv", "--pipeline", "merge_backward", "--sink"], "--pipeline says all"),
        (["lower", "a.csv", "--max-active-stages", "2"], "--max-active-stages needs --shard"),
        (["lower", "low.csv"], "lowered already"),
        (["lower", "a.csv", "-o", "no/such/folder.csv"], "cannot be written"),
        (["lower", "a.csv", "-o", "a.yaml"], "must be one of .csv, .json, .txt"),
        (["convert", "missing.csv", "b.csv"], "does not exist"),
        (["convert", "overlap.csv", "b.csv", "--to-dialect", "monarch"], "OVERLAP_F_B"),
        (["diff", "a.csv", "1f1b"], "a family needs --ranks"),
        (["nosuch"], "No such command"),
    ],
    ids=" ".join,
)
def test_wrong_usage_and_bad_input_exit_with_2_and_one_message(arguments: list[str], message: str):
    Path("a.csv").write_text("0F0,0B0\n1F0,1B0\n")
    save(lower(load("a.csv")), "low.csv")
    Path("junk.csv").write_text("0F0,0F0junk\n")
    Path("other.yaml").write_text("")
    Path("overlap.csv").write_text("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n")
    result = run(*arguments, code=2)
    assert result.stdout == ""
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_what_a_pass_finds_wrong_exits_with_1():
    Path("bad.csv").write_text(DEADLOCK)
    result = run("lower", "bad.csv", code=1)
    assert result.stdout == ""
    assert "1F1" in result.stderr
