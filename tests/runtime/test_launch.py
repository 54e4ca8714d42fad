"""Starting the ranks of one host, and what is left of them: nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fullbore.errors import ExecutionError, ParameterError
from fullbore.runtime.launch import launch
from fullbore.runtime.transport import Transport

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

BOTH_WAYS = [(0, 1), (1, 0)]


def reporting(transport: Transport, rank: int, report, offset: int):
    """Exchange the ranks, and report in two pieces."""
    transport.connect(2, BOTH_WAYS)
    incoming = (1 - rank, rank)
    transport.post(incoming, 1)
    transport.send(incoming[::-1], 1, torch.full((2,), float(rank + offset)))
    report({"rank": rank, "threads": torch.get_num_threads()})
    report("done")
    return transport.recv(incoming, 1)


def failing(transport: Transport, rank: int) -> None:
    """Rank 1 fails, rank 0 waits for it."""
    transport.connect(2, BOTH_WAYS)
    if rank == 1:
        error = ValueError("the user's own mistake")
        error.add_note("rank 1, stage 1, action 1F3")
        raise error
    transport.post((1, 0), 1)
    transport.recv((1, 0), 1)


def sleeping(transport: Transport, rank: int, report) -> None:
    report(os.getpid())
    time.sleep(600)


@pytest.mark.parametrize("transport", ["auto", "p2p"])
def test_results_and_reports(transport):
    reports = []
    results = launch(
        reporting,
        2,
        transport=transport,
        args=(10,),
        threads=2,
        on_report=lambda rank, value: reports.append((rank, value)),
    )
    assert [result.tolist() for result in results] == [[11.0, 11.0], [10.0, 10.0]]
    assert sorted(reports, key=lambda report: report[0]) == [
        (0, {"rank": 0, "threads": 2}),
        (0, "done"),
        (1, {"rank": 1, "threads": 2}),
        (1, "done"),
    ]


def test_the_exception_that_came_first_is_raised():
    with pytest.raises(ExecutionError) as caught:
        launch(failing, 2)
    assert caught.value.rank == 1
    assert str(caught.value) == (
        "rank 1: ValueError: the user's own mistake (rank 1, stage 1, action 1F3)"
    )
    assert "raise error\nValueError: the user's own mistake" in str(caught.value.__cause__)


# A shell that starts the tests in the background has them ignore Ctrl-C, and all they start.
LAUNCHER = """
import signal
from fullbore.runtime.launch import launch
from tests.runtime.test_launch import sleeping
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    launch(sleeping, 2, on_report=lambda rank, pid: print(pid, flush=True))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda number: number.name)
def test_no_rank_outlives_its_launcher(tmp_path, number):
    script = tmp_path / "launcher.py"
    script.write_text(LAUNCHER)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as launcher:
        assert launcher.stdout is not None
        try:
            pids = [int(launcher.stdout.readline()) for _ in range(2)]
            assert all(map(is_alive, pids))
            launcher.send_signal(number)
            launcher.wait(30)
        finally:
            launcher.kill()
    assert launcher.returncode == -number
    deadline = time.monotonic() + 10
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, pids))


def is_alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((lambda transport, rank: None, 2), "import"),
        ((failing, 0), "at least 1"),
    ],
    ids=["function", "ranks"],
)
def test_arguments_that_make_no_sense(arguments, message):
    with pytest.raises(ParameterError, match=message):
        launch(*arguments)


def test_an_unknown_transport_is_refused():
    with pytest.raises(ParameterError, match="'carrier pigeon'"):
        launch(failing, 2, transport="carrier pigeon")  # type: ignore[arg-type]


def test_a_function_that_was_typed_in_is_refused():
    code = (
        "from fullbore.runtime.launch import launch\n"
        "def work(transport, rank): pass\n"
        "launch(work, 2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ParameterError" in done.stderr
    assert "put it in a file" in done.stderr


def test_malloc_is_tuned_where_it_can_be():
    code = "from fullbore.runtime.launch import tune_malloc; print(tune_malloc())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(sys.platform.startswith("linux"))


def test_an_exception_of_a_callback_ends_the_ranks():
    started = []

    def refuse(rank: int, pid: int) -> None:
        started.append(pid)
        if len(started) == 2:
            raise KeyError("enough")

    with pytest.raises(KeyError):
        launch(sleeping, 2, on_report=refuse)
    assert not any(map(is_alive, started))
