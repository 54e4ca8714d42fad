"""Stages that fail, or end or stop their own process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.reference import WIDTH
from torch import Tensor, nn


class Dying(nn.Module):
    """Does something to its process in one of its calls, once in all processes.

    Args:
        how: "SIGKILL", "SIGSTOP", "exit", "raise", "raise in backward", "shape".
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
            return self.fail(x)
        out: Tensor = self.inner(x)
        return out

    def fail(self, x: Tensor) -> Tensor:
        if self.how == "exit":
            os._exit(3)
        if self.how == "raise in backward":
            out: Tensor = self.inner(x)
            out.register_hook(boom)
            return out
        if self.how == "raise":
            boom()
        if self.how == "shape":
            return self.fail_to_multiply(x)
        os.kill(os.getpid(), getattr(signal, self.how))
        return x

    def fail_to_multiply(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x[:, 1:])
        return out


def boom(*_: object) -> None:
    raise ValueError("boom")


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
