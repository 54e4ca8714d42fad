"""A pipeline whose step failed on one rank is used again on all."""

from __future__ import annotations

import pytest
import torch
from tests.reference import WIDTH, assert_gradients, linear_tanh, mse, reference
from tests.runtime.faults.harness import Clock, Kind, Setting, play
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


def train(transport: Transport, rank: int, clock: Clock) -> None:
    for failing, in_backward in CASES:
        texts = fail_and_go_on(transport, rank, failing, in_backward)
        clock.texts += [texts[0], texts[-1]]


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
    # Some may have finished the step: nobody can know whether the next batches belong together.
    pipe.realign()
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


@pytest.mark.parametrize("kind", ["shm", "p2p"])
def test_all_ranks_get_back_in_step_after_a_failure(kind: Kind) -> None:
    seen = play(train, Setting(kind, 3, timeout=20.0))
    for case, (failing, in_backward) in enumerate(CASES):
        where = f"rank {failing}, stage {failing}, action {failing}{'B' if in_backward else 'F'}3"
        for rank, one in enumerate(seen):
            assert one.texts is not None, "its gradients are not the reference's"
            first, last = one.texts[2 * case : 2 * case + 2]
            if rank == failing:
                assert first == last == "RuntimeError: boom"
                continue
            assert last.startswith("PeerFailed: ")
            assert f"rank {failing} failed: RuntimeError: boom ({where})" in last
            if (failing, in_backward) == (0, True):
                assert first == "fine"


def out_of_step(transport: Transport, rank: int) -> list[str]:
    """Rank 1 has made a call less, as if it had been told of a failure one call later."""
    plan = fb.build("1f1b", num_ranks=2, num_microbatches=MICROBATCHES)
    pipe = Pipeline(Stage(linear_tanh(2)[rank], rank, 2), plan, loss_fn=mse, transport=transport)
    x = torch.randn(8, WIDTH)
    found = [outcome(pipe, x, x)]
    pipe._agreement.calls -= rank
    pipe._agreement.forget()
    found += [outcome(pipe, x, x) for _ in range(2)]
    pipe.realign()
    return [*found, outcome(pipe, x, x)]


@pytest.mark.parametrize("kind", ["shm", "p2p"])
def test_ranks_that_are_out_of_step_are_refused_until_they_say_otherwise(kind: Kind) -> None:
    for first, *refused, last in launch(out_of_step, 2, transport=kind, timeout=20.0):
        assert first == last == "fine"
        assert all("call realign() on all ranks" in text for text in refused), refused
