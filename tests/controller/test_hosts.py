"""Ranks on hosts that a job has allocated: here two on one machine, as Monarch's jobs give them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.controller.cases import data, make, sgd
from torch import Tensor

from fullbore.controller import Factory, HostedStage, PipelineParallelism

pytestmark = [pytest.mark.torch, pytest.mark.monarch]

STAGES = [Factory("tests.controller.cases.build_stage", seed) for seed in range(4)]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Any]:
    """A mesh of two hosts."""
    # Sets Monarch up before it is imported.
    import fullbore.controller.actor  # noqa: F401

    # isort: split
    from monarch.job import ProcessJob

    job = ProcessJob({"ranks": 2})
    yield job.state(cached_path=None).ranks
    job.kill()


def processes(stage: HostedStage) -> tuple[int, int]:
    return os.getpid(), os.getppid()


def train(pp: PipelineParallelism, *, kill: bool = False) -> dict[str, Tensor]:
    for seed in range(3):
        if kill and seed == 1:
            os.kill(pp.each_stage(processes)[1][0], signal.SIGKILL)
        pp.zero_grad()
        pp.run(*data(seed))
        pp.step()
    return pp.state_dict()


def test_each_host_has_a_rank_and_a_lost_one_comes_back(hosts: Any):
    options: dict[str, Any] = {"schedule": "zbv", "optimizers": sgd}
    with make(2, STAGES, **options) as pp:
        wanted = train(pp)
    with make(hosts, STAGES, recover=True, **options) as pp:
        found = train(pp, kill=True)
        (first, host), (second, other), *again = pp.each_stage(processes)
    assert again == [(second, other), (first, host)]
    assert len({os.getpid(), host, other, first, second}) == 5
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
