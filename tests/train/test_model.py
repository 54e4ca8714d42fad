"""The model: the same bits whole and in parts."""

import math

import pytest
import torch

from fullbore.errors import ParameterError
from fullbore.train.model import GPT, build_model, loss_fn, split_layers
from fullbore.train.settings import ModelSize

pytestmark = pytest.mark.torch

SIZE = ModelSize(layers=5, width=8, heads=2, sequence_length=6)


def tokens(*, rows: int = 2, length: int = 6) -> torch.Tensor:
    return torch.arange(rows * length).reshape(rows, length) * 7 % 256


def matrices(model: GPT) -> list[torch.Tensor]:
    return [parameter for parameter in model.parameters() if parameter.dim() == 2]


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
def test_the_parts_of_any_split_are_the_whole(num_stages: int):
    whole = build_model(SIZE, seed=3)
    parts = [build_model(SIZE, layers, seed=3) for layers in split_layers(SIZE, num_stages)]

    together = [pair for part in parts for pair in part.named_parameters()]
    assert [name for name, _ in together] == [name for name, _ in whole.named_parameters()]
    for (name, found), wanted in zip(together, whole.parameters(), strict=True):
        assert torch.equal(found, wanted), name
    hidden = tokens()
    for part in parts:
        hidden = part(hidden)
    assert torch.equal(hidden, whole(tokens()))


def test_a_seed_decides_the_weights_and_no_two_parameters_are_alike():
    one, same, other = (build_model(SIZE, seed=seed) for seed in (1, 1, 2))
    weights = matrices(one)
    assert all(map(torch.equal, one.parameters(), same.parameters()))
    assert not any(map(torch.equal, weights, matrices(other)))
    assert len({p.flatten()[0].item() for p in weights}) == len(weights)


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    build_model(SIZE, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_logits_do_not_depend_on_later_bytes():
    model, text = build_model(SIZE, seed=0), tokens()
    changed = text.clone()
    changed[:, 4:] = 0
    assert torch.equal(model(text)[:, :4], model(changed)[:, :4])
    assert not torch.equal(model(text)[:, 4:], model(changed)[:, 4:])


def test_an_untrained_model_knows_nothing():
    logits = build_model(SIZE, seed=0)(tokens())
    assert logits.shape == (2, 6, 256)
    assert loss_fn(logits, tokens()).item() == pytest.approx(math.log(256), abs=0.1)


def test_shorter_sequences_are_taken():
    assert build_model(SIZE, seed=0)(tokens(length=3)).shape == (2, 3, 256)


def test_layers_are_spread_evenly():
    assert split_layers(SIZE, 1) == [range(5)]
    assert split_layers(SIZE, 3) == [range(2), range(2, 4), range(4, 5)]
    assert split_layers(SIZE, 5) == [range(i, i + 1) for i in range(5)]


def test_too_few_layers_are_refused():
    with pytest.raises(ParameterError, match=r"6 stages.* at least 6 layers; it has 5.*--layers 6"):
        split_layers(SIZE, 6)


def test_only_the_ends_have_embedding_and_head():
    first, middle, last = (GPT(SIZE, layers) for layers in split_layers(SIZE, 3))
    assert [part.embedding is not None for part in (first, middle, last)] == [True, False, False]
    assert [part.head is not None for part in (first, middle, last)] == [False, False, True]
