"""All ranks of a pipeline hear what each of them says, over every transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.pool import Pool
from tests.reference import WIDTH, linear_tanh, local_pipeline, mse

import fullbore as fb
from fullbore.errors import ExecutionError, ParameterError
from fullbore.runtime import P2PTransport, Pipeline, Stage, Transport
from fullbore.runtime.launch import launch

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

FAMILIES = ("1f1b", "interleaved_1f1b", "zbv_zero_bubble", "forward_only")


def pipeline(transport: Transport, rank: int, num_ranks: int, name: str) -> Pipeline:
    plan = fb.build(name, num_ranks=num_ranks, num_microbatches=4)
    modules = linear_tanh(plan.num_stages)
    own = plan.placement.stages_of(rank)
    stages = [Stage(modules[s], s, len(modules)) for s in own]
    return Pipeline(stages, plan, loss_fn=mse, transport=transport)


def gather(transport: Transport, rank: int, name: str, num_ranks: int) -> Any:
    pipe = pipeline(transport, rank, num_ranks, name)
    x = torch.ones(8, WIDTH)
    found = []
    for turn in range(3):
        found.append(pipe.all_gather({"tensor": torch.full((rank + 1,), turn), "rank": rank}))
        if not pipe.schedule.forward_only:
            pipe.step(x, target=x)
        pipe.eval(x)
    return found


def gather_over_gloo(rank: int, size: int, name: str) -> Any:
    transport = P2PTransport(timeout=60.0)
    try:
        return gather(transport, rank, name, size)
    finally:
        transport.close()


def check(results: list[Any], num_ranks: int) -> None:
    for found in results:
        for turn, values in enumerate(found):
            assert [value["rank"] for value in values] == list(range(num_ranks))
            for rank, value in enumerate(values):
                assert torch.equal(value["tensor"], torch.full((rank + 1,), turn))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_rank_hears_all_over_gloo(pool: Callable[[int], Pool], name: str) -> None:
    check(pool(4).run(gather_over_gloo, name), 4)


def test_every_rank_hears_all_over_shared_memory() -> None:
    check(launch(gather, 3, transport="shm", args=("interleaved_1f1b", 3)), 3)


def test_a_process_that_plays_all_ranks_hears_itself() -> None:
    plan = fb.build("1f1b", num_ranks=2, num_microbatches=2)
    pipe = local_pipeline(linear_tanh(2), plan)
    assert pipe.all_gather(5) == [5]


def test_it_is_refused_within_a_step() -> None:
    plan = fb.build("1f1b", num_ranks=2, num_microbatches=2)

    def loss_fn(output: Any, target: Any) -> Any:
        pipe.all_gather(1)

    pipe = local_pipeline(linear_tanh(2), plan, loss_fn=loss_fn)
    with pytest.raises(ParameterError, match="while one of them runs"):
        pipe.step(torch.ones(2, WIDTH), target=torch.ones(2, WIDTH))


def disagree(rank: int, size: int) -> str:
    transport = P2PTransport(timeout=20.0)
    pipe = pipeline(transport, rank, size, "1f1b")
    x = torch.ones(8, WIDTH)
    try:
        if rank:
            pipe.all_gather(1)
        else:
            pipe.step(x, target=x)
    except ExecutionError as error:
        return str(error)
    finally:
        transport.close()
    return ""


def test_a_rank_that_makes_a_step_instead_is_an_error(pool: Callable[[int], Pool]) -> None:
    messages = pool(2).run(disagree)
    assert any("tell each other outside the schedule" in text for text in messages), messages
    assert all(messages)
