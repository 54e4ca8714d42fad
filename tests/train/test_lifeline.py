"""Processes that torchrun started end when they should, though no handler of theirs ends them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fullbore.train.lifeline import GRACE, lifeline

pytestmark = pytest.mark.torch

STUCK = """
import signal, time
from fullbore.train.lifeline import lifeline
signal.signal(signal.SIGTERM, lambda *_: None)
with lifeline():
    print("here", flush=True)
    while True:
        time.sleep(60)
"""

PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {STUCK!r}], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_process_whose_parent_was_killed_ends():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + GRACE + 5
        while is_alive(pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not is_alive(pid)


def test_sigterm_ends_a_process_whose_handler_does_not():
    with subprocess.Popen(
        [sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(GRACE + 5) == 128 + signal.SIGTERM


def test_a_process_that_ends_by_itself_is_left_alone():
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with lifeline():
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signal.set_wakeup_fd(-1) == -1
