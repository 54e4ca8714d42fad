"""What stages hold of a microbatch."""

import pytest
import torch
from torch import Tensor

from fullbore.train.footprint import footprint
from fullbore.train.model import GPT, build_model
from fullbore.train.settings import ModelSize

pytestmark = pytest.mark.torch

SIZE = ModelSize(layers=6, width=32, heads=2, sequence_length=64)
HIDDEN = 64 * 32 * 4
"""Bytes of what crosses stages, for one row."""


def part(first: int, end: int) -> GPT:
    return build_model(SIZE, range(first, end), seed=0)


def saved(block: GPT, rows: int) -> int:
    """The bytes that autograd saves of a forward, parameters left out."""
    storages: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in block.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    given = torch.randn(rows, 64, 32).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = block(given)
    storages.pop(output.untyped_storage().data_ptr(), None)
    return sum(storages.values())


@pytest.mark.parametrize("rows", [1, 3])
def test_it_is_what_autograd_saves(rows: int):
    block = part(2, 3)
    found = footprint(block, SIZE, rows=rows)
    assert found.activations == pytest.approx(saved(block, rows), rel=0.02)
    # W needs the inputs of four linear layers and the gradients of their outputs.
    inputs_and_gradients = (1 + 3) + (1 + 1) + (1 + 4) + (4 + 1)
    assert found.kept == pytest.approx(inputs_and_gradients * HIDDEN * rows, rel=0.1)


def test_layers_add_up_and_the_part_is_left_as_it_is():
    one, three = part(2, 3), part(2, 5)
    state = {name: p.clone() for name, p in three.named_parameters()}
    alone, together = (footprint(p, SIZE, rows=2) for p in (one, three))
    assert together.activations == pytest.approx(3 * alone.activations, rel=0.01)
    assert together.static == 3 * alone.static
    assert alone.static == 16 * sum(p.numel() for p in one.parameters())
    assert all(p.grad is None for p in three.parameters())
    assert all(torch.equal(p, state[name]) for name, p in three.named_parameters())


def test_the_ends_have_more_to_hold():
    inside = footprint(part(2, 3), SIZE, rows=2)
    head = footprint(part(5, 6), SIZE, rows=2)
    assert head.activations > inside.activations + 2 * 64 * 256 * 4  # the log-probabilities
    assert footprint(part(0, 1), SIZE, rows=2).static > inside.static
