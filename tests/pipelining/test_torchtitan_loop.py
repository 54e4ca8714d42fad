"""A training loop as torchtitan has it, on every schedule."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.pipelining.language import Data, make, pieces, token_loss, train, train_in_processes
from tests.pool import Pool
from tests.reference import Result, assert_gradients, assert_same, reference
from torch import nn

import fullbore as fb
from fullbore.pipelining.schedules import get_schedule_class

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

FAMILIES = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "LoopedBFS": "looped_bfs",
    "Interleaved1F1B": "interleaved_1f1b",
    "InterleavedZeroBubble": "interleaved_zero_bubble",
    "ZBVZeroBubble": "zbv_zero_bubble",
    "DualPipeV": "dualpipev",
}


def wanted(modules: list[nn.Module], data: Data) -> Result:
    """Of the plain loop."""
    loss_fn = partial(token_loss, global_valid_tokens=data.tokens)
    args, weights = [(ids,) for ids in data.inputs], [1.0] * data.count
    return reference(
        modules, args, data.labels, weights=weights, loss_fn=loss_fn, kwargs=data.named
    )


def check_losses(losses: Any, evaluated: Any, result: Result, data: Data) -> None:
    assert len(losses) == len(evaluated) == data.count
    assert all(map(torch.equal, losses, result.losses))
    torch.testing.assert_close(torch.stack(evaluated), torch.stack(losses) * data.tokens)


@pytest.mark.parametrize("name", list(FAMILIES)[2:])
def test_all_ranks_in_one_process(name: str):
    modules, data = pieces(4), Data(6)
    result = wanted(modules, data)
    schedule = make(name, modules, range(4), data.count)
    losses, evaluated = train(schedule, range(4), data, steps=1)
    check_losses(losses, evaluated, result, data)
    plan = fb.build(FAMILIES[name], num_ranks=2, num_microbatches=data.count)
    assert_gradients(modules, result.gradients, plan)


@pytest.mark.parametrize("name", list(FAMILIES)[:2])
def test_a_schedule_of_one_stage(name: str):
    modules, data = pieces(1), Data(3)
    result = wanted(modules, data)
    losses, evaluated = train(make(name, modules, [0], 3), [0], data, steps=1)
    check_losses(losses, evaluated, result, data)
    plan = fb.build(FAMILIES[name], num_ranks=1, num_microbatches=3)
    assert_gradients(modules, result.gradients, plan)


@pytest.mark.parametrize("name", ["1F1B", "ZBVZeroBubble"])
def test_over_processes(pool: Callable[[int], Pool], name: str):
    found = pool(2).run(train_in_processes, name, 5)
    data = Data(5)
    modules = pieces(2 if name == "1F1B" else 4)
    result = wanted(modules, data)
    gradients = {**found[0][0], **found[1][0]}
    for stage, named in enumerate(result.gradients):
        for parameter, gradient in named.items():
            what = f"stage {stage} {parameter}"
            assert_same(gradients[stage][parameter], gradient, exact=False, what=what)
    holder = 1 if name == "1F1B" else 0
    check_losses(found[holder][1], found[holder][2], result, data)
    assert found[1 - holder][1:] == (None, None)


def test_gradients_of_two_steps_add_up():
    modules, data = pieces(4), Data(4)
    result = wanted(modules, data)
    train(make("ZBVZeroBubble", modules, range(4), 4), range(4), data, steps=2)
    for module, named in zip(modules, result.gradients, strict=True):
        for name, parameter in module.named_parameters():
            once = named[name]
            assert once is not None
            torch.testing.assert_close(parameter.grad, 2 * once)


def test_names_in_any_case():
    for name in FAMILIES:
        assert get_schedule_class(name.upper()) is get_schedule_class(name)
