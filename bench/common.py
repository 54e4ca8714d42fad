"""What the benchmarks share: where and when they ran, how busy the machine was, medians, tables."""

from __future__ import annotations

import datetime
import math
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")

GLANCE = 0.2
"""Seconds that it takes to see whether the machine is busy."""

QUIET = 0.10
"""CPU seconds a second of other programs that are let pass."""


def provenance() -> list[str]:
    """Lines that say on what machine, of which commit, with which command and when."""
    import torch

    return [
        f"{processor()}, {os.cpu_count()} CPUs, {platform.system()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}",
        f"commit {commit()}, {datetime.date.today().isoformat()}",
        f"`{shlex.join(['python', *arguments()])}`",
    ]


def arguments() -> list[str]:
    """How this program was started, after the interpreter."""
    script, *given = sys.argv
    path = Path(script).resolve()
    root = Path(__file__).resolve().parents[1]
    if not path.is_relative_to(root):
        return [path.name, *given]
    return ["-m", ".".join(path.relative_to(root).with_suffix("").parts), *given]


def processor() -> str:
    """The model of the CPU."""
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def commit() -> str:
    """The commit that is checked out, with ``-dirty`` where files differ from it."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=10"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"


def machine_seconds() -> float:
    """CPU seconds that anything on this machine has used, or was kept from using, since its start.

    Interrupts are left out: those of a message over the loopback are the work of who sent it.
    """
    user, nice, system, _, _, _, _, steal, *_ = map(
        int, Path("/proc/stat").read_text("utf-8").split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + steal) / TICKS


def wait_for_quiet(patience: float, limit: float) -> None:
    """Wait until the machine uses no more than ``limit`` CPUs, for ``patience`` seconds at most."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        before = machine_seconds()
        time.sleep(GLANCE)
        if machine_seconds() - before <= limit * GLANCE:
            return


class Sample(list[float]):
    """Repeated measurements of one number."""

    @property
    def median(self) -> float:
        """NaN if there are none."""
        return statistics.median(self) if self else math.nan

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles."""
        if len(self) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self, n=4, method="inclusive")
        return low, high

    def text(self, digits: int = 3) -> str:
        """Median and quartiles."""
        if not self:
            return "-"
        low, high = self.spread
        return f"{self.median:.{digits}f} [{low:.{digits}f}-{high:.{digits}f}]"


def ratios(ours: Iterable[float], theirs: Iterable[float]) -> Sample:
    """The ratio of each repetition."""
    return Sample(mine / other for mine, other in zip(ours, theirs, strict=True))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
