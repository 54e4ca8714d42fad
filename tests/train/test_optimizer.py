"""The optimizer: any split gives the same updates, under the unsplit model's names."""

import pytest
import torch

from fullbore.train.model import build_model, split_layers
from fullbore.train.optimizer import Optimizer
from fullbore.train.settings import WARM_UP, ModelSize, Recipe

pytestmark = pytest.mark.torch

RECIPE = Recipe(ModelSize(layers=3, width=4, heads=2, sequence_length=4), learning_rate=0.01)


def optimizer(num_stages: int) -> Optimizer:
    size = RECIPE.size
    return Optimizer([build_model(size, r, seed=0) for r in split_layers(size, num_stages)], RECIPE)


def train(optimizer: Optimizer, *, first: int = 0, last: int = 3) -> None:
    for step in range(first, last):
        for index, parameter in enumerate(optimizer.parameters.values()):
            parameter.grad = torch.full_like(parameter, 0.1 * (index + 1) * (step - 1.5))
        optimizer.step(step)


def test_a_split_model_is_updated_as_the_whole():
    whole, split = optimizer(1), optimizer(3)
    train(whole)
    train(split)
    assert list(whole.weights()) == list(split.weights())
    assert all(map(torch.equal, whole.weights().values(), split.weights().values()))


def test_weights_and_state_move_to_another_split():
    uninterrupted, before, after = optimizer(1), optimizer(2), optimizer(3)
    train(uninterrupted)
    train(before, last=2)
    after.load_weights(before.weights())
    after.load_state(before.state())
    train(after, first=2)
    assert all(map(torch.equal, uninterrupted.weights().values(), after.weights().values()))
    for name, state in uninterrupted.state().items():
        assert all(torch.equal(value, after.state()[name][key]) for key, value in state.items())


def test_what_is_loaded_is_copied():
    source, target = optimizer(1), optimizer(1)
    train(source, last=1)
    target.load_weights(source.weights())
    target.load_state(source.state())
    kept = {name: value.clone() for name, value in target.weights().items()}
    train(source, first=1)
    assert all(map(torch.equal, kept.values(), target.weights().values()))
    assert all(state["step"].item() == 1 for state in target.state().values())


def test_gradients_are_forgotten():
    trained = optimizer(1)
    train(trained)
    assert all(p.grad is None for p in trained.parameters.values())


def test_the_rate_rises_to_the_full_one():
    rates = [RECIPE.rate(step) for step in range(WARM_UP + 2)]
    assert rates[0] == pytest.approx(0.01 / WARM_UP)
    assert rates == sorted(rates)
    assert rates[WARM_UP - 1 :] == [0.01] * 3
