"""Stages that end or stop their own process."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.reference import WIDTH
from torch import Tensor, nn


class Dying(nn.Module):
    """Does something to its process in one of its calls, once in all processes.

    Args:
        how: "SIGKILL", "SIGSTOP", "exit".
        call: in which of its forwards.
        flag: a file that exists until it was done.
    """

    def __init__(self, how: str, call: int, flag: Path) -> None:
        super().__init__()
        self.how, self.left, self.flag = how, call, flag
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        self.left -= self.training
        if self.left == 0 and self.flag.exists():
            self.flag.unlink()
            self.end()
        out: Tensor = self.inner(x)
        return out

    def end(self) -> None:
        if self.how == "exit":
            os._exit(3)
        if self.how == "sleep":
            time.sleep(1000)
        os.kill(os.getpid(), getattr(signal, self.how))


def pid(stage: object) -> int:
    """For ``each_stage``."""
    return os.getpid()


def is_alive(number: int) -> bool:
    """Whether a process runs, and is not only remembered."""
    try:
        text = Path(f"/proc/{number}/stat").read_text("ascii", "replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"
