"""What may cross a stage boundary: any pytree of tensors and plain values."""

from typing import Any, NamedTuple

import pytest
import torch
from tests.reference import WIDTH, assert_gradients, local_pipeline, mse, reference
from torch import Tensor, nn

import fullbore as fb

pytestmark = pytest.mark.torch

FAMILIES = ("1f1b", "zbv_zero_bubble", "dualpipev", "interleaved_1f1b")


class Apply(nn.Module):
    """A linear layer and a function of it that makes the boundary value."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self.linear, *args)


class Pair(NamedTuple):
    h: Tensor
    n: int


def first_of(x: Any) -> Tensor:
    while not isinstance(x, Tensor):
        x = x["h"] if isinstance(x, dict) else x[0]
    return x


def passing(make: Any) -> Any:
    """A stage function that takes whatever came and hands on ``make(h)``."""
    return lambda linear, *args: make(linear(first_of(args)).tanh())


def aux(linear: nn.Module, h: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
    """Hands on a second output that nobody uses."""
    return linear(h).tanh(), linear(h).square()


def both(linear: nn.Module, h: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Hands on its output twice, and uses both inputs where there are two."""
    out = linear(h + rest[0] if rest else h).tanh()
    return out, out


CASES = {
    "a long mask": passing(lambda h: (h, torch.ones(h.shape[0], dtype=torch.long))),
    "None": passing(lambda h: (h, None)),
    "a number": passing(lambda h: (h, 3)),
    "text in a list": passing(lambda h: [h, ["text", 1.5, True]]),
    "a dict": passing(lambda h: {"h": h}),
    "a named tuple": passing(lambda h: Pair(h, 2)),
    "a nested tuple": passing(lambda h: ((h, h.detach()), {"h": h * 2})),
    "an unused output": aux,
    "the same output twice": both,
    "its input and its output": lambda linear, h, *rest: (linear(h).tanh(), h),
    "a view": passing(lambda h: h[:, : WIDTH // 2].repeat(1, 2)[:, :WIDTH]),
    "not contiguous": passing(lambda h: h.t().contiguous().t()),
    "a gradient cut off": passing(lambda h: h.detach()),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("case", CASES)
def test_it_arrives_as_sent_and_gradients_are_right(case: str, name: str) -> None:
    plan = fb.build(name, num_ranks=2, num_microbatches=4)
    torch.manual_seed(0)
    modules: list[nn.Module] = [Apply(CASES[case]) for _ in range(plan.num_stages - 1)]
    modules.append(Apply(lambda linear, *args: linear(first_of(args))))
    x, y = torch.randn(8, WIDTH), torch.randn(8, WIDTH)
    wanted = reference(
        modules, [(p,) for p in x.tensor_split(4)], y.tensor_split(4), weights=[0.25] * 4
    )
    local_pipeline(modules, plan).step(x, target=y)
    assert_gradients(modules, wanted.gradients, plan)


@pytest.mark.parametrize("name", FAMILIES)
def test_integer_inputs_and_integer_companions_get_no_gradient(name: str) -> None:
    plan = fb.build(name, num_ranks=2, num_microbatches=4)
    modules: list[nn.Module] = [nn.Embedding(11, WIDTH)]
    modules += [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in modules * 5]
    modules = modules[: plan.num_stages]
    x, y = torch.randint(0, 11, (8, 3)), torch.randn(8, 3, WIDTH)
    wanted = reference(
        modules, [(p,) for p in x.tensor_split(4)], y.tensor_split(4), weights=[0.25] * 4
    )
    local_pipeline(modules, plan).step(x, target=y)
    assert_gradients(modules, wanted.gradients, plan)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_stage_without_parameters(name: str, where: str) -> None:
    plan = fb.build(name, num_ranks=2, num_microbatches=4)
    torch.manual_seed(0)
    modules: list[nn.Module] = [nn.Linear(WIDTH, WIDTH) for _ in range(plan.num_stages)]
    modules[{"first": 0, "middle": plan.num_stages // 2, "last": -1}[where]] = nn.Tanh()
    x, y = torch.randn(8, WIDTH), torch.randn(8, WIDTH)
    wanted = reference(
        modules, [(p,) for p in x.tensor_split(4)], y.tensor_split(4), weights=[0.25] * 4
    )
    local_pipeline(modules, plan, loss_fn=mse).step(x, target=y)
    assert_gradients(modules, wanted.gradients, plan)
