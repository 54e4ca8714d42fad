"""A pipeline whose step failed on one rank is used again on all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.reference import WIDTH, assert_gradients, linear_tanh, mse, reference
from torch import Tensor, nn

import fullbore as fb
from fullbore.runtime import Pipeline, Stage, Transport
from fullbore.runtime.launch import launch

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

MICROBATCHES = 4

CASES = [(0, True), (2, False), (1, True)]
"""Which rank fails, and whether in backward. Others have finished the step before it: rank 0's last
backward is the end of all, the last forward of rank 2 is not."""


class Fragile(nn.Module):
    """A stage that fails in the last microbatch if it is told to."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.fails_in = ""
        self.left = MICROBATCHES

    def fail(self, place: str) -> None:
        self.left -= place == self.fails_in
        if not self.left:
            self.left, self.fails_in = MICROBATCHES, ""
            raise RuntimeError("boom")

    def forward(self, x: Tensor) -> Tensor:
        self.fail("forward")
        out: Tensor = self.module(x)
        if out.requires_grad:
            out.register_hook(lambda _: self.fail("backward"))
        return out


def train(transport: Transport, rank: int) -> list[list[str]]:
    return [fail_and_go_on(transport, rank, *case) for case in CASES]


def fail_and_go_on(transport: Transport, rank: int, failing: int, in_backward: bool) -> list[str]:
    plan = fb.build("1f1b", num_ranks=3, num_microbatches=MICROBATCHES)
    modules = linear_tanh(3)
    fragile = Fragile(modules[rank])
    pipe = Pipeline(Stage(fragile, rank, 3), plan, loss_fn=mse, transport=transport)
    torch.manual_seed(1)
    x, y = torch.randn(8, WIDTH), torch.randn(8, WIDTH)
    pipe.step(x, target=y)
    if rank == failing:
        fragile.fails_in = "backward" if in_backward else "forward"
    found = [outcome(pipe, x, y)]
    if found == ["fine"]:
        found.append(outcome(pipe, x, y))
    fragile.zero_grad()
    good = pipe.step(2 * x, target=y)
    wanted = reference(
        modules,
        [(part,) for part in (2 * x).tensor_split(MICROBATCHES)],
        y.tensor_split(MICROBATCHES),
        weights=[1 / MICROBATCHES] * MICROBATCHES,
    )
    assert_gradients([modules[rank]], wanted.gradients, plan, [rank])
    if good.losses is not None:
        assert all(map(torch.equal, good.losses, wanted.losses))
    assert [outcome(pipe, x, y) for _ in range(3)] == ["fine"] * 3
    return found


def outcome(pipe: Pipeline, x: Tensor, y: Tensor) -> str:
    try:
        pipe.step(x, target=y)
    except Exception as error:  # noqa: BLE001 - it is what the test looks at
        return f"{type(error).__name__}: {error}"
    return "fine"


@pytest.mark.parametrize("transport", ["shm", "p2p"])
def test_all_ranks_get_back_in_step_after_a_failure(transport: Any) -> None:
    for (failing, in_backward), found in zip(
        CASES, zip(*launch(train, 3, transport=transport, timeout=20.0), strict=True), strict=True
    ):
        where = f"rank {failing}, stage {failing}, action {failing}{'B' if in_backward else 'F'}3"
        assert found[failing] == ["RuntimeError: boom"]
        others = [texts for rank, texts in enumerate(found) if rank != failing]
        for texts in others:
            assert texts[-1].startswith("PeerFailed: ")
            assert f"rank {failing} failed: RuntimeError: boom ({where})" in texts[-1]
        if (failing, in_backward) == (0, True):
            assert [texts[0] for texts in others] == ["fine", "fine"]
