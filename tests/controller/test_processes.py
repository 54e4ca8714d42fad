"""Processes of this host are watched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fullbore.controller.processes import STOPPED_SECONDS, Identity, Processes

pytestmark = pytest.mark.torch


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], text=True
    ) as process:
        yield process
        process.kill()


def started(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[19]


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_one_that_ends_is_noticed(process: subprocess.Popen[str]):
    watched = Processes({3: Identity(process.pid, started(process.pid))})
    assert watched.ended() == []
    assert watched.pid(3) == process.pid
    watched.kill()
    wait_for(lambda: watched.ended() == [3])
    assert process.wait() == -signal.SIGKILL
    watched.kill()
    watched.close()
    assert watched.ended() == []


def test_one_that_is_stopped_for_a_while_is_noticed(process: subprocess.Popen[str]):
    watched = Processes({0: Identity(process.pid, started(process.pid))})
    process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    wait_for(watched.stopped)
    assert time.monotonic() - began >= STOPPED_SECONDS
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: watched.stopped() == [])
    watched.close()


def test_another_process_of_that_number_is_left_alone(process: subprocess.Popen[str]):
    watched = Processes({0: Identity(process.pid, "12")})
    assert watched.pid(0) is None
    watched.kill()
    assert process.poll() is None


def test_a_process_knows_itself():
    assert Identity.own() == (os.getpid(), started(os.getpid()))


def test_one_that_is_gone_already_is_no_error():
    watched = Processes({0: Identity(2**22 + 5, "12")})
    assert watched.ended() == watched.stopped() == []
