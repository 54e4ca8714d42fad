"""The command as a whole: help, start-up, pipes."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fullbore import __version__
from fullbore.cli import main
from fullbore.cli.app import VERBS, failure
from fullbore.errors import ExecutionError, FormatError, InvalidSchedule, ParameterError
from fullbore.formats import save
from fullbore.passes import lower
from fullbore.schedules import build
from fullbore.sim import Profile, Sample, TableCosts, save_costs, save_profile

COMMAND = [sys.executable, "-c", "from fullbore.cli import main; main(prog_name='fullbore')"]
TORCH_FREE = [name for name in VERBS if name != "train"]


def command_of(name: str) -> click.Command:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return command


def examples(text: str | None) -> list[str]:
    lines = [line.strip() for line in (text or "").splitlines()]
    return [line.partition(" | ")[0] for line in lines if line.startswith("fullbore ")]


def test_help_lists_every_verb():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for name, verb in VERBS.items():
        assert f"  {name} " in result.output
        assert verb.summary in result.output


def test_version():
    assert CliRunner().invoke(main, ["--version"]).output == f"fullbore {__version__}\n"


@pytest.mark.parametrize("name", TORCH_FREE)
def test_a_verbs_help_begins_with_its_summary_and_has_examples(name: str):
    output = CliRunner().invoke(main, [name, "--help"]).output
    assert examples(output)
    assert all(
        option.help for option in command_of(name).params if isinstance(option, click.Option)
    )


def save_example_profiles() -> None:
    ran = lower(build("1f1b", num_ranks=2, num_microbatches=8))
    step = [[Sample(action, t, t, t + 1) for t, action in enumerate(p)] for p in ran.programs]
    Path("out").mkdir()
    save_profile(Profile(ran, (step,)), "out/profile.json")
    for rank, program in enumerate(ran.programs):
        events = [
            {"ph": "X", "name": str(a), "ts": 10.0 * t, "dur": 8.0} for t, a in enumerate(program)
        ]
        Path(f"rank{rank}.json").write_text(json.dumps({"traceEvents": events}), "utf-8")


@pytest.mark.parametrize("name", ["", *TORCH_FREE])
def test_the_examples_in_the_help_work(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    schedule = build("1f1b", num_ranks=4, num_microbatches=8)
    for file in ("mine.csv", "mine.json", "theirs.csv", "theirs.json"):
        save(schedule, file)
    save_costs(TableCosts(F=1, I=1, W=1), "costs.json")
    save_example_profiles()
    for example in examples((command_of(name) if name else main).epilog):
        arguments = example.split()[1:]
        result = CliRunner().invoke(main, [argument.strip('"') for argument in arguments])
        assert result.exit_code == 0, f"{example}\n{result.output}"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FormatError("no"), 2),
        (ParameterError("no"), 2),
        (InvalidSchedule([]), 1),
        (ExecutionError("no"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exit_codes(error, code: int):
    assert failure(error).exit_code == code


def test_the_help_needs_nothing_heavy():
    code = (
        "import sys, fullbore.cli\n"
        "try: fullbore.cli.main(['--help'])\n"
        "except SystemExit: print(*sys.modules)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    modules = set(printed.split())
    assert "click" in modules
    assert not modules & {"torch", "numpy", "rich", "fullbore.sim", "fullbore.view"}


def test_no_verb_but_train_imports_torch():
    code = "import sys\nfrom fullbore.cli.app import VERBS\nfrom importlib import import_module\n"
    code += "for name, verb in VERBS.items():\n    name == 'train' or import_module(verb.module)\n"
    code += "print(*sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert not set(printed.split()) & {"torch", "numpy"}


def test_a_reader_that_leaves_ends_the_program_quietly():
    process = subprocess.Popen(
        [*COMMAND, "show", "1f1b", "--ranks", "4", "--microbatches", "8"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr as stream:
        assert stream.read() == b""
    assert process.wait(timeout=60) in (0, 1)  # versions of click differ


def test_a_full_disk_is_one_message(monkeypatch: pytest.MonkeyPatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(click, "echo", full)
    for verb in (["list"], ["lower", "1f1b", "-p", "2", "-m", "2"]):
        result = CliRunner().invoke(main, verb)
        assert result.exit_code == 2
        assert result.stderr == "Error: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("verb", ["show", "verify", "lower"])
def test_nobody_needs_to_listen(verb: str, monkeypatch: pytest.MonkeyPatch):
    # What Python makes of a stdout that the shell closed, as with >&-.
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(SystemExit) as end:
        main([verb, "1f1b", "-p", "2", "-m", "2"])
    assert end.value.code == 0


@pytest.mark.parametrize(
    ("encoding", "row"),
    [
        ("utf-8", "rank 1  ·  F0 B0─── ·  ·"),
        ("ascii", "rank 1  .  F0 B0--- .  ."),
    ],
)
def test_any_encoding_can_show_a_grid(encoding: str, row: str):
    printed = subprocess.run(
        [*COMMAND, "show", "gpipe", "-p", "2", "-m", "1"],
        capture_output=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    ).stdout
    assert row in printed.decode(encoding).splitlines()


def test_a_lowered_schedule_goes_through_files(tmp_path: Path):
    save(lower(build("zbv", num_ranks=2, num_microbatches=2)), tmp_path / "low.json")
    result = CliRunner().invoke(main, ["verify", str(tmp_path / "low.json")])
    assert result.exit_code == 0
