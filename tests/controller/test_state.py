"""The state of the whole model, from the parts that the processes have."""

import pytest
import torch

from fullbore.controller.state import merge
from fullbore.errors import ParameterError

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "value", [torch.tensor([1.0, float("nan")]), torch.tensor(float("nan")), torch.tensor([True])]
)
def test_copies_of_a_tied_tensor_are_one_even_if_they_are_nan(value: torch.Tensor):
    found = merge([{"tied": value}, {"tied": value.clone(), "own": value}])
    assert found.keys() == {"tied", "own"}


@pytest.mark.parametrize(
    "other", [torch.tensor([2.0, 1.0]), torch.tensor([[1.0, 2.0]]), torch.tensor([1, 2])]
)
def test_different_tensors_of_one_name_are_refused(other: torch.Tensor):
    with pytest.raises(ParameterError, match="two stages have different tensors of the name tied"):
        merge([{"tied": torch.tensor([1.0, 2.0])}, {"tied": other}])
