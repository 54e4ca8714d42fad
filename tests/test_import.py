"""`import fullbore` stays light: no torch, nothing of the command line, under 0.2 s."""

import re
import subprocess
import sys

HEAVY = {"torch", "numpy", "click", "rich", "matplotlib"}


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, timeout=60
    )


def seconds_to_import() -> float:
    """Cumulative import time of the package, as `-X importtime` reports it in microseconds."""
    report = run_python("-X", "importtime", "-c", "import fullbore").stderr
    (microseconds,) = re.findall(r"\| +(\d+) \| fullbore$", report, re.MULTILINE)
    return int(microseconds) / 1e6


def test_import_brings_in_nothing_heavy():
    printed = run_python("-c", "import fullbore, sys; print(*sys.modules)").stdout
    modules = {name.partition(".")[0] for name in printed.split()}
    assert "fullbore" in modules
    assert not modules & HEAVY


def test_import_takes_under_a_fifth_of_a_second():
    assert min(seconds_to_import() for _ in range(3)) < 0.2
