"""`fullbore train` as users start and end it: in processes of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TINY = ["--layers", "4", "--width", "16", "--heads", "2", "--sequence-length", "16", "-m", "4"]
SOURCE = Path(__file__).parent
FOREVER = ["--steps", "1000000"]
SECONDS = 60


@contextmanager
def training(*options: object) -> Iterator[subprocess.Popen[str]]:
    """A run in a process group of its own, as a terminal makes one."""
    command = [sys.executable, "-c", "from fullbore.cli import main; main()", "train"]
    process = subprocess.Popen(
        [*command, *TINY, "--text", str(SOURCE), *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


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
    return [int(pid) for pid, command in lines if "spawn_main" in command]


def assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + SECONDS
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, f"processes {left} are left behind"
        time.sleep(0.05)


def test_ctrl_c_ends_the_step_saves_and_leaves_nobody_behind(tmp_path: Path):
    path = tmp_path / "x.pt"
    with training(*FOREVER, "--check", "--json", "--save", path) as process:
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


def test_the_ranks_end_with_a_killed_command():
    with training(*FOREVER) as process:
        read_until(process, "step 1/")
        ranks = children(process)
        process.kill()
        process.wait(SECONDS)
        assert_gone(ranks)


def test_ranks_that_torchrun_starts(tmp_path: Path):
    path, script = tmp_path / "x.pt", tmp_path / "train.py"
    script.write_text("from fullbore.cli import main\nmain()\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(script), "train", *TINY, "--text", str(SOURCE)]
    command += ["--steps", "3", "--check", "--json", "--save", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * SECONDS)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["outcome"], facts["num_ranks"], facts["last_step"]) == ("finished", 2, 3)
    assert facts["check"]["equal"]
    assert facts["check"]["compared"] == 3 * (4 * 11 + 5 + 4)
    assert torch.load(path, weights_only=True)["step"] == 3
