"""The unpipelined model that everything is compared with."""

import subprocess
import sys

import pytest
import torch

from fullbore.train.model import build_model, loss_fn
from fullbore.train.reference import Reference
from fullbore.train.settings import ModelSize, Recipe

pytestmark = pytest.mark.torch

RECIPE = Recipe(ModelSize(layers=2, width=8, heads=2, sequence_length=4), batch_size=5)


def test_it_imports_nothing_of_the_runtime():
    code = (
        "import sys, fullbore.train.reference\n"
        "sys.exit(any(name.startswith('fullbore.runtime') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("num_microbatches", [1, 2, 5])
def test_microbatches_add_up_to_the_gradient_of_the_mean_loss(num_microbatches: int):
    inputs, target = torch.randint(256, (2, 5, 4), generator=torch.Generator().manual_seed(0))
    model = build_model(RECIPE.size, seed=RECIPE.seed)
    loss = loss_fn(model(inputs), target)
    loss.backward()

    reference = Reference(RECIPE, num_microbatches, device=torch.device("cpu"))
    losses = reference.backward(inputs, target)

    rows = [len(part) for part in inputs.tensor_split(num_microbatches)]
    mean = sum(n * found.item() for n, found in zip(rows, losses, strict=True)) / 5
    assert mean == pytest.approx(loss.item(), rel=1e-6)
    for name, parameter in model.named_parameters():
        found = reference.optimizer.parameters[name].grad
        torch.testing.assert_close(found, parameter.grad, rtol=1e-4, atol=1e-7)
