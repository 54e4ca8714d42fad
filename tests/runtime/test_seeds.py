"""Seeded modules draw by name and microbatch, however they are run."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fullbore.errors import ParameterError
from fullbore.runtime import microbatch_seed, seeded

pytestmark = pytest.mark.torch

ONES = torch.ones(64)


def draw(module: nn.Module, seed: int = 0, microbatch: int = 0, *, stage: int = 0) -> Tensor:
    with microbatch_seed(seed, microbatch, stage=stage):
        drawn: Tensor = module(ONES)
    return drawn


def dropout(name: str = "a") -> nn.Module:
    return seeded(nn.Dropout(0.5), name)


def test_the_mask_depends_on_seed_microbatch_and_name_alone():
    mask = draw(dropout())
    assert torch.equal(draw(dropout()), mask)
    assert torch.equal(draw(dropout(), stage=3), mask)
    assert not torch.equal(draw(dropout(), seed=1), mask)
    assert not torch.equal(draw(dropout(), microbatch=1), mask)
    assert not torch.equal(draw(dropout("b")), mask)


def test_what_ran_before_does_not_matter():
    first, second = dropout("a"), dropout("b")
    mask = draw(second)
    with microbatch_seed(0, 0):
        first(ONES)
        assert torch.equal(second(ONES), mask)


def test_stages_draw_apart_where_they_are_not_seeded():
    plain = nn.Dropout(0.5)
    assert not torch.equal(draw(plain, stage=0), draw(plain, stage=1))


def test_the_generator_is_put_back():
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    draw(dropout())
    with pytest.raises(ZeroDivisionError), microbatch_seed(0, 0):
        raise ZeroDivisionError
    assert torch.equal(torch.rand(3), wanted)


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ZeroDivisionError


def test_the_generator_is_put_back_within_a_microbatch_too():
    plain = nn.Dropout(0.5)
    mask = draw(plain)
    with microbatch_seed(0, 0):
        dropout()(ONES)
        with pytest.raises(ZeroDivisionError):
            seeded(Failing(), "failing")(ONES)
        assert torch.equal(plain(ONES), mask)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_draws_the_same_again(use_reentrant: bool):
    module = seeded(nn.Sequential(nn.Linear(8, 8), dropout("inner"), nn.Linear(8, 8)), "outer")
    x = torch.randn(4, 8, requires_grad=True)
    with microbatch_seed(1, 2):
        y = module(x)
    y.sum().backward()
    wanted = [p.grad for p in module.parameters()]
    module.zero_grad()
    with microbatch_seed(1, 2):
        y = checkpoint(module, x, use_reentrant=use_reentrant)
    with microbatch_seed(1, 3):
        checkpoint(module, x, use_reentrant=use_reentrant)
    y.sum().backward()
    for p, gradient in zip(module.parameters(), wanted, strict=True):
        assert gradient is not None
        assert p.grad is not None
        assert torch.equal(p.grad, gradient)


def test_a_checkpoint_that_does_not_keep_the_generator_is_an_error():
    module = nn.Sequential(nn.Linear(8, 8), dropout())
    x = torch.randn(4, 8, requires_grad=True)
    with microbatch_seed(1, 2):
        y = checkpoint(module, x, use_reentrant=False, preserve_rng_state=False)
    with pytest.raises(ParameterError, match="must preserve"):
        y.sum().backward()


def test_without_a_microbatch_it_is_an_error_in_training_only():
    module = dropout()
    with pytest.raises(ParameterError, match="seeded module 'a' is not told"):
        module(ONES)
    # The failure leaves nothing behind.
    assert draw(module).count_nonzero() < 64
    assert torch.equal(module.eval()(ONES), ONES)


def test_a_module_is_left_as_it_is_and_can_be_copied():
    layer = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    assert seeded(layer, "a") is layer
    assert [*layer.state_dict()] == ["0.weight", "0.bias"]
    x = torch.ones(64, 2)
    copies = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))
    with microbatch_seed(0, 0):
        outputs = [module(x) for module in (layer, *copies)]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_many_masks_differ():
    masks = {tuple(draw(dropout(), seed, m).tolist()) for seed in range(20) for m in range(20)}
    assert len(masks) == 400
