"""Processes that end or stop under the controller, on Monarch's actors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.controller.cases import data, make, sgd
from tests.controller.dying import Dying, is_alive, pid
from tests.reference import WIDTH
from torch import nn

from fullbore.controller import RankLost
from fullbore.errors import ExecutionError, PeerFailed

pytestmark = [pytest.mark.torch, pytest.mark.monarch]

SECONDS = 8.0
"""In which a lost rank must be reported, on a busy machine."""


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    path = tmp_path / "flag"
    path.touch()
    return path


@pytest.mark.parametrize(
    ("rank", "how", "message"),
    [
        (1, "SIGKILL", r"rank 1: its process \d+ (was killed by SIGKILL|is gone)"),
        (2, "exit", r"rank 1: its process \d+ (exited with code 3|is gone)"),
        (3, "SIGSTOP", r"rank 1: its process \d+ is stopped \(SIGSTOP\)"),
    ],
)
def test_a_lost_rank_is_reported_by_name(procs: Any, rank: int, how: str, message: str, flag: Path):
    meshes = [procs.slice(ranks=0), procs.slice(ranks=rank)]
    stages = [nn.Linear(WIDTH, WIDTH), Dying(how, 6, flag)]
    with make(meshes, stages, engine="monarch") as pp:
        pp.run(*data())
        (_, number) = pp.each_stage(pid)
        began = time.monotonic()
        with pytest.raises(RankLost, match=message) as caught:
            pp.run(*data())
        assert time.monotonic() - began < SECONDS
        assert caught.value.rank == 1
        assert isinstance(caught.value, PeerFailed)
        with pytest.raises(ExecutionError, match="cannot be used any more: rank 1"):
            pp.run(*data())
    if how == "SIGSTOP":  # it is not the controller's to end
        os.kill(number, signal.SIGCONT)


def test_a_rank_that_ends_between_two_steps_is_reported():
    before = shared_memory()
    pp = make(2, [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)], engine="monarch")
    pp.run(*data())
    numbers = pp.each_stage(pid)
    os.kill(numbers[0], signal.SIGKILL)
    with pytest.raises(RankLost, match=r"rank 0: its process \d+ "):
        pp.run(*data())
    pp.close()
    wait_for(lambda: not any(map(is_alive, numbers)))
    assert shared_memory() <= before


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def wait_for(condition: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def train(pp: Any, disturb: Any = None) -> Any:
    for step in range(4):
        if step == 3 and disturb is not None:
            disturb(pp)
        pp.zero_grad()
        loss = pp.run(*data(step))
        pp.step()
    return loss, pp.state_dict()


def test_with_recover_the_numbers_are_those_of_an_undisturbed_run(flag: Path):
    stages = [nn.Linear(WIDTH, WIDTH), Dying("SIGKILL", 6, flag)]
    twins = deepcopy(stages)
    twins[1].how = "none"  # type: ignore[assignment]
    twins[1].left = 0  # type: ignore[assignment]
    with make(2, twins, optimizers=sgd) as pp:
        wanted = train(pp)
    numbers: list[int] = []

    def stop(pp: Any) -> None:
        numbers.extend(pp.each_stage(pid))
        os.kill(numbers[-2], signal.SIGSTOP)

    pp = make(2, stages, engine="monarch", optimizers=sgd, recover=True)
    numbers += pp.each_stage(pid)
    found = train(pp, stop)
    assert not flag.exists()
    numbers += pp.each_stage(pid)
    assert len(set(numbers)) == 6
    assert torch.equal(found[0], wanted[0])
    assert all(torch.equal(value, wanted[1][name]) for name, value in found[1].items())
    pp.close()
    wait_for(lambda: not any(map(is_alive, numbers)))


def test_nothing_is_left_when_the_script_is_killed(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout is not None
    numbers = [int(text) for text in process.stdout.readline().split()]
    assert len(numbers) == 2
    process.kill()
    process.wait()
    wait_for(lambda: not any(map(is_alive, numbers)))
    process.stdout.close()


SCRIPT = """
import os, time
import torch
from fullbore.controller import PipelineParallelism

class Net(torch.nn.Linear):
    pass

def loss(output, target):
    return (output - target).square().mean()

def pid(stage):
    return os.getpid()

if __name__ == "__main__":
    pp = PipelineParallelism(2, [Net(8, 8), Net(8, 8)], schedule="1f1b", batch_size=8,
                             microbatch_size=2, loss_fn=loss, engine="monarch")
    pp.run(torch.randn(8, 8), torch.randn(8, 8))
    print(*pp.each_stage(pid), flush=True)
    time.sleep(60)
"""
