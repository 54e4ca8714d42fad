"""Case C26: compiled stages under a split schedule are right, and their work is done in I."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from tests.reference import WIDTH, assert_gradients, local_pipeline, reference
from torch import Tensor, nn

import fullbore as fb
from fullbore.ir import Action
from fullbore.runtime import ActionContext

pytestmark = pytest.mark.torch


class Layer(nn.Module):
    """PyTorch compiles no module of its own in place, but those that are in one like this."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.linear(h).tanh()
        return out


Compile = Callable[[nn.Module], nn.Module]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    torch.compiler.reset()


def wrapped(module: nn.Module) -> Any:
    return torch.compile(module, backend="aot_eager")


def in_place(module: nn.Module) -> nn.Module:
    module.compile(backend="aot_eager")
    return module


@pytest.mark.parametrize("compile_", [wrapped, in_place])
@pytest.mark.parametrize("family", ["interleaved_zero_bubble", "zbv_zero_bubble", "dualpipev"])
def test_c26_a_compiled_stage_under_a_split_schedule(family: str, compile_: Compile):
    schedule = fb.build(family, num_ranks=2, num_microbatches=4)
    modules: list[nn.Module] = [Layer() for _ in range(schedule.num_stages)]
    x = torch.randn(8, WIDTH)
    wanted = reference(
        modules, [(part,) for part in x.chunk(4)], x.sin().chunk(4), weights=[0.25] * 4
    )
    pipe = local_pipeline([compile_(module) for module in modules], schedule)
    seen: list[str] = []

    def weights(action: Action, context: ActionContext) -> None:
        before = deepcopy([p.grad for p in modules[action.stage].parameters()])
        assert None not in before
        context.run()
        after = [p.grad for p in modules[action.stage].parameters()]
        assert all(map(torch.equal, before, after))  # type: ignore[arg-type]
        seen.append(str(action))

    pipe.register_custom_function("W", weights)
    out = pipe.step(x, target=x.sin())
    assert seen
    assert_gradients(modules, wanted.gradients, schedule)
    assert out.losses is not None
    for found, expected in zip(out.losses, wanted.losses, strict=True):
        torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)
