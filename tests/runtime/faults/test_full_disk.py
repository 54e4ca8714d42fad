"""A checkpoint that does not fit on the disk ends `fullbore train` with its reason."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

TINY = ["--layers", "4", "--width", "16", "--heads", "2", "--sequence-length", "16", "-m", "4"]
SOURCE = Path(__file__).parent

# No file may grow larger, as on a full disk; the run's own text is smaller.
PROGRAM = """
import resource, sys
from fullbore.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
main()
"""


def test_a_full_disk_ends_training_with_its_reason_and_leaves_nothing(tmp_path: Path):
    path = tmp_path / "x.pt"
    options = ["--steps", "3", "--save-every", "1", "--save", str(path)]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "train", *TINY, "--text", str(SOURCE), *options],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert f"--save {path}: cannot be written" in err.replace("\n", " ")
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())
    deadline = time.monotonic() + 10
    while session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not session(process.pid)


def session(number: int) -> list[str]:
    """The processes of a session that have not ended."""
    found = subprocess.run(
        ["ps", "-o", "stat=,args=", "-s", str(number)], capture_output=True, text=True, check=False
    )
    return [line for line in found.stdout.splitlines() if line[0] != "Z"]
