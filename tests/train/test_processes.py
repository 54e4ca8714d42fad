"""`fullbore train` as users start and end it: in processes of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TINY = ["--layers", "4", "--width", "16", "--heads", "2", "--sequence-length", "16", "-m", "4"]
SOURCE = Path(__file__).parent
FOREVER = ["--steps", "1000000"]
SECONDS = 100
MONARCH = ["--controller", "monarch"]
DRIVEN = [
    pytest.param([], id="programs"),
    pytest.param(MONARCH, id="actors", marks=pytest.mark.monarch),
]

# A shell that starts the tests in the background has them ignore Ctrl-C, and all they start.
PROGRAM = """
import signal
from fullbore.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


@contextmanager
def started(*command: object) -> Iterator[subprocess.Popen[str]]:
    """A command in a process group of its own, as a terminal makes one."""
    process = subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            # torchrun ends its processes only if it is asked to end.
            process.terminate()
        process.communicate(timeout=SECONDS)


def training(*options: object) -> AbstractContextManager[subprocess.Popen[str]]:
    return started(sys.executable, "-c", PROGRAM, "train", *TINY, "--text", SOURCE, *options)


def read_until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"the run ended before it said {text!r}")


def children(process: subprocess.Popen[str]) -> list[int]:
    """The processes of the ranks."""
    found = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(process.pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.split(maxsplit=1) for line in found.stdout.splitlines()]
    mains = ("spawn_main", "bootstrap_main")  # multiprocessing's, Monarch's
    return [int(pid) for pid, command in lines if any(main in command for main in mains)]


def assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + SECONDS
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, f"processes {left} are left behind"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether a process has not ended; nobody may have taken note of its end yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("driven", DRIVEN)
def test_ctrl_c_ends_the_step_saves_and_leaves_nobody_behind(driven: list[str], tmp_path: Path):
    path = tmp_path / "x.pt"
    with training(*FOREVER, *driven, "--check", "--json", "--save", path) as process:
        read_until(process, "step 1/")
        ranks = children(process)
        assert len(ranks) == 2
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "Traceback" not in err
    facts = json.loads(out)
    step = facts["last_step"]
    assert f"interrupted after step {step}; go on from step {step} with --resume {path}" in err
    assert facts["outcome"] == "interrupted"
    assert facts["check"]["equal"]
    assert torch.load(path, weights_only=True)["step"] == step
    assert_gone(ranks)


def test_ctrl_c_before_the_first_step_ends_the_run_at_once(tmp_path: Path):
    with training(*FOREVER, "--save", tmp_path / "x.pt") as process:
        read_until(process, "starting")
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "interrupted after step 0; nothing is saved" in err
    assert not out
    assert not list(tmp_path.iterdir())


@pytest.mark.monarch
def test_ctrl_c_ends_actors_at_once_where_nothing_is_saved():
    with training(*FOREVER, *MONARCH) as process:
        read_until(process, "step 1/")
        ranks = children(process)
        assert len(ranks) == 2
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "--save would have kept it" in err
    assert "Traceback" not in err
    assert_gone(ranks)


@pytest.mark.monarch
def test_a_killed_actor_ends_the_run():
    with training(*FOREVER, *MONARCH) as process:
        read_until(process, "step 1/")
        ranks = children(process)
        os.kill(ranks[1], signal.SIGKILL)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert re.search(rf"rank [01]: its process {ranks[1]} was killed by SIGKILL", err)
    assert "Traceback" not in err
    assert_gone(ranks)


def test_a_killed_rank_ends_the_run():
    with training(*FOREVER) as process:
        read_until(process, "step 1/")
        ranks = children(process)
        os.kill(ranks[1], signal.SIGKILL)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert "rank 1" in err
    assert "Traceback" not in err
    assert_gone(ranks)


@pytest.mark.parametrize("driven", DRIVEN)
def test_the_ranks_end_with_a_killed_command(driven: list[str]):
    with training(*FOREVER, *driven) as process:
        read_until(process, "step 1/")
        ranks = children(process)
        assert len(ranks) == 2
        process.kill()
        process.wait(SECONDS)
        assert_gone(ranks)


def test_the_ranks_end_with_a_killed_torchrun(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    options = [*TINY, "--text", SOURCE, *FOREVER]
    with started(*torchrun, "--nproc-per-node", 2, script, "train", *options) as process:
        read_until(process, "step 1/")
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(process.pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        ranks = [int(pid) for pid in found.stdout.split()]
        assert len(ranks) == 2
        process.kill()
        process.wait(SECONDS)
        deadline = time.monotonic() + 15
        while any(map(is_running, ranks)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not any(map(is_running, ranks))


def test_ranks_that_torchrun_starts(tmp_path: Path):
    path, script = tmp_path / "x.pt", tmp_path / "train.py"
    script.write_text(PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    options = [*TINY, "--text", SOURCE, "--steps", 3, "--check", "--json", "--save", path]
    with started(*torchrun, "--nproc-per-node", 2, script, "train", *options) as process:
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    facts = json.loads(out)
    assert (facts["outcome"], facts["num_ranks"], facts["last_step"]) == ("finished", 2, 3)
    assert facts["check"]["equal"]
    assert facts["check"]["compared"] == 3 * (4 * 11 + 5 + 4)
    assert torch.load(path, weights_only=True)["step"] == 3
