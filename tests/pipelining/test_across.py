"""Several processes: errors reach everybody, losses too, and replicas may be combined with it."""

from collections.abc import Callable

import pytest
import torch
from tests.pipelining.across import (
    bad_arguments_on_one_rank,
    modules_replaced,
    no_schedule_on_one_rank,
    replicas,
    shared_losses,
    tensor_parallel,
)
from tests.pipelining.programs import batches, layers, mean_square
from tests.pool import Pool
from tests.reference import apply

pytestmark = [pytest.mark.torch, pytest.mark.gloo]


def test_an_error_before_a_step_reaches_the_other_rank(pool: Callable[[int], Pool]):
    other, own = pool(2).run(bad_arguments_on_one_rank)
    kinds = ["TypeError", "TypeError", "ParameterError", "RuntimeError", "RuntimeError"]
    assert [text.split(":")[0] for text in own] == kinds
    for told, text in zip(other, own, strict=True):
        assert told.startswith("PeerFailed")
        assert text.split(": ", 1)[1][:40] in told


def test_an_error_before_the_ranks_have_met_reaches_the_other_rank(pool: Callable[[int], Pool]):
    other, own = pool(2).run(no_schedule_on_one_rank)
    text = "_PipelineScheduleRuntime has no schedule yet: call _load_csv(filename)"
    assert text in own[0]
    assert other[0].startswith("PeerFailed: rank 1 failed before it made its pipeline: Parameter")
    assert text in other[0]
    assert own[1] == other[1] == "no error"


def test_losses_on_every_rank(pool: Callable[[int], Pool]):
    found = pool(2).run(shared_losses)
    (step, evaluation, holder), other = found
    assert holder == 0
    assert len(step) == len(evaluation) == 4
    assert all(map(torch.equal, step + evaluation, other[0] + other[1]))


def test_a_module_replaced_after_the_first_step(pool: Callable[[int], Pool]):
    for refused, good, trained in pool(2).run(modules_replaced):
        assert "submod was replaced after the first step. Replace it before, or call" in refused
        assert (good, trained) == ("no error", "True")


@pytest.mark.parametrize("name", ["ZBVZeroBubble", "DualPipeV"])
@pytest.mark.parametrize("wrapped", ["fsdp2", "ddp"])
def test_replicas_of_a_pipeline(pool: Callable[[int], Pool], name: str, wrapped: str):
    modules = layers(4)
    losses = [mean_square(apply(modules, x), y) for x, y in batches(2)]
    torch.stack(losses).mean().backward()
    for named in pool(4).run(replicas, name, wrapped):
        for stage, gradients in named.items():
            wanted = [parameter.grad for parameter in modules[stage].parameters()]
            torch.testing.assert_close(gradients, wanted)


def test_dtensors_between_stages(pool: Callable[[int], Pool]):
    """As torch hands them over, with the same numbers."""
    apis = ("fullbore.pipelining", "torch.distributed.pipelining")
    found, wanted = (pool(4).run(tensor_parallel, api) for api in apis)
    for (position, values, hooks), (same, theirs, _) in zip(found, wanted, strict=True):
        assert (position, hooks) == (same, 0)
        assert len(values) == len(theirs)
        torch.testing.assert_close(values, theirs, rtol=0, atol=0)
