"""Faults in the ranks that ``launch`` starts: it names them, and leaves no process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fullbore.errors import ExecutionError
from fullbore.runtime import Transport
from fullbore.runtime.launch import launch

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

BOTH_WAYS = [(0, 1), (1, 0)]


def leave(transport: Transport, rank: int, report) -> None:
    """Rank 1 leaves Python, rank 0 waits for it."""
    report(os.getpid())
    transport.connect(2, BOTH_WAYS)
    if rank == 1:
        sys.exit("no more")
    transport.post((1, 0), 1)
    transport.recv((1, 0), 1)


def stop(transport: Transport, rank: int, report) -> None:
    """Rank 1 is stopped, rank 0 waits for it."""
    report(os.getpid())
    transport.connect(2, BOTH_WAYS)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    transport.post((1, 0), 1)
    transport.recv((1, 0), 1)


@pytest.mark.parametrize(
    ("function", "message"),
    [(leave, "rank 1: SystemExit: no more"), (stop, r"rank 0 waited 2 s for rank 1 to send")],
    ids=["exit", "stop"],
)
def test_no_rank_is_left(function, message: str):
    pids: list[int] = []
    with pytest.raises(ExecutionError, match=message):
        launch(function, 2, timeout=2.0, on_report=lambda _, pid: pids.append(pid))
    assert len(pids) == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


UNGUARDED = """
from fullbore.runtime.launch import launch
from tests.runtime.faults.test_launched import leave
launch(leave, 2)
"""


def test_a_program_without_a_guard_is_told_of_it(tmp_path: Path):
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "exited with code 1 before it could begin" in last
    assert 'behind `if __name__ == "__main__":`' in last
    assert "while a rank's new process imports the program that called it" in done.stderr
    assert time.monotonic() - began < 60
