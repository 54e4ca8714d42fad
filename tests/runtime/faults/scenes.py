"""What the ranks do in the tests of faults: a good step, one with a fault, and what they try then.

``partial(with_fault, Fault(...))`` is what ``harness.play`` plays.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from tests.reference import WIDTH, linear_tanh, mse
from tests.runtime.faults.harness import Clock
from torch import Tensor, nn

import fullbore as fb
from fullbore.runtime import Pipeline, Stage, Transport

MICROBATCHES = 4


@dataclass(frozen=True)
class Fault:
    """What goes wrong on one rank.

    Attributes:
        what: happens.
        rank: where.
        place: in the forward, in the backward, or in the loss function.
        microbatch: when.
    """

    what: Literal["raise", "interrupt", "kill", "stop", "sleep", "shape"]
    rank: int
    place: Literal["F", "B", "loss"] = "F"
    microbatch: int = 3


class Faulty(nn.Module):
    """A stage with a fault, once it is armed."""

    def __init__(self, module: nn.Module, fault: Fault | None, clock: Clock) -> None:
        super().__init__()
        self.module, self._fault, self._clock = module, fault, clock
        self.is_armed = False
        self._counts = dict.fromkeys(("F", "B", "loss"), 0)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(self.strike("F", x))
        if out.requires_grad:
            out.register_hook(lambda gradient: self.strike("B", gradient))
        return out

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss function of the last stage."""
        return mse(self.strike("loss", output), target)

    def strike(self, place: str, value: Tensor) -> Tensor:
        """Let the fault happen if it is time for it."""
        fault = self._fault
        if fault is None or not self.is_armed or place != fault.place:
            return value
        self._counts[place] += 1
        if self._counts[place] != fault.microbatch + 1:
            return value
        self._clock.begin()
        match fault.what:
            case "raise":
                raise ValueError("boom")
            case "interrupt":
                raise KeyboardInterrupt
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "sleep":
                time.sleep(3.5)
            case "shape":
                return value[:, :-1]
        return value


def make(
    transport: Transport, rank: int, size: int, clock: Clock, fault: Fault | None = None
) -> tuple[Pipeline, Faulty]:
    """A pipeline of 1f1b, and this rank's stage."""
    plan = fb.build("1f1b", num_ranks=size, num_microbatches=MICROBATCHES)
    own = fault if fault is not None and rank == fault.rank else None
    module = Faulty(linear_tanh(size)[rank], own, clock)
    pipe = Pipeline(Stage(module, rank, size), plan, loss_fn=module.loss, transport=transport)
    return pipe, module


def batch(rows: int = 2 * MICROBATCHES) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)


def with_fault(size: int, fault: Fault, transport: Transport, rank: int, clock: Clock) -> None:
    """A good step, one with the fault, and one more."""
    pipe, module = make(transport, rank, size, clock, fault)
    x, y = batch()
    clock.call(lambda: pipe.step(x, target=y))
    module.is_armed = True
    clock.call(lambda: pipe.step(x, target=y))
    module.is_armed = False
    if clock.texts == ["fine", "fine"]:  # it was done before; it hears now
        clock.call(lambda: pipe.step(x, target=y))
    if fault.what not in ("stop", "sleep"):
        pipe.realign()
        clock.call(lambda: pipe.step(x, target=y))


def sleep_once(module: nn.Module, seconds: float) -> None:
    """Let the next forward take long."""

    def sleep(*_: object) -> None:
        handle.remove()
        time.sleep(seconds)

    handle = module.register_forward_pre_hook(sleep)


def slow_down(module: nn.Module) -> None:
    """Let every backward take long."""
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: time.sleep(0.1))


def skip_a_step(size: int, skipping: int, transport: Transport, rank: int, clock: Clock) -> None:
    """One rank makes fewer steps than the others, and idles."""
    pipe, _ = make(transport, rank, size, clock)
    x, y = batch()
    clock.call(lambda: pipe.step(x, target=y))
    if rank == skipping:
        clock.begin()
        time.sleep(3)
    else:
        clock.call(lambda: pipe.step(x, target=y))


def evaluate_alone(size: int, alone: int, transport: Transport, rank: int, clock: Clock) -> None:
    """One rank calls ``eval`` where the others call ``step``."""
    pipe, _ = make(transport, rank, size, clock)
    x, y = batch()
    if rank == alone:
        clock.begin()
    clock.call(lambda: pipe.eval(x, target=y) if rank == alone else pipe.step(x, target=y))
    clock.call(lambda: pipe.step(x, target=y))


def without_gradients(
    size: int, mode: str, where: int, transport: Transport, rank: int, clock: Clock
) -> None:
    """``step`` under ``no_grad`` or ``inference_mode`` on one rank, between two good ones."""
    pipe, _ = make(transport, rank, size, clock)
    x, y = batch()
    clock.call(lambda: pipe.step(x, target=y))
    if rank == where:
        clock.begin()
    with getattr(torch, mode)() if rank == where else nullcontext():
        clock.call(lambda: pipe.step(x, target=y))
    clock.call(lambda: pipe.step(x, target=y))


def other_schedule(
    plans: tuple[fb.Schedule, fb.Schedule],
    odd: int,
    transport: Transport,
    rank: int,
    clock: Clock,
) -> None:
    """One rank has another schedule than the others."""
    plan = plans[rank == odd]
    stage = Stage(linear_tanh(plan.num_stages)[rank], rank, plan.num_stages)
    clock.begin()
    clock.call(lambda: Pipeline(stage, plan, loss_fn=mse, transport=transport))


def no_pipeline(size: int, missing: int, transport: Transport, rank: int, clock: Clock) -> None:
    """One rank never makes its pipeline."""
    if rank == missing:
        clock.begin()
        time.sleep(3)
        return
    clock.call(lambda: make(transport, rank, size, clock))


def busy_neighbours(size: int, transport: Transport, rank: int, clock: Clock) -> None:
    """The last rank dies; the one beside it computes for long, so that the others hear of it only
    if somebody else tells them."""
    pipe, module = make(transport, rank, size, clock)
    x, y = batch()
    clock.call(lambda: pipe.step(x, target=y))
    if rank == size - 1:
        clock.begin()
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == size - 2:
        sleep_once(module, 4)
    clock.call(lambda: pipe.step(x, target=y))


def host_leaves(size: int, transport: Transport, rank: int, clock: Clock) -> None:
    """Rank 0, whose process hosts the store, is done with an evaluation long before the others, and
    says goodbye: that is no fault."""
    pipe, module = make(transport, rank, size, clock)
    x, _ = batch()
    if rank == 1:
        sleep_once(module, 6)
    clock.call(lambda: pipe.eval(x, target=batch()[1]))


def one_of_two_worlds(dying: int, transport: Transport, rank: int, clock: Clock) -> None:
    """Two pipelines of two ranks each; a process dies in the middle of a step."""
    is_dying = dist.get_rank() == dying
    pipe, module = make(transport, rank, 2, clock, Fault("kill", rank) if is_dying else None)
    x, y = batch()
    clock.call(lambda: pipe.step(x, target=y))
    module.is_armed = True
    clock.call(lambda: pipe.step(x, target=y))
    clock.call(lambda: pipe.step(x, target=y))


def busy_beside_host(size: int, transport: Transport, rank: int, clock: Clock) -> None:
    """Rank 0, whose process hosts the store, dies; rank 1 computes for long, and the others wait
    for it."""
    pipe, module = make(transport, rank, size, clock)
    x, y = batch()
    clock.call(lambda: pipe.step(x, target=y))
    if rank == 1:
        sleep_once(module, 8)
    module.is_armed = True
    if rank == 0:
        module.register_forward_hook(lambda *_: die_soon(clock))
    clock.call(lambda: pipe.step(x, target=y))


def die_soon(clock: Clock) -> None:
    """Die when the first microbatch is with the next rank."""

    def die() -> None:
        clock.begin()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Timer(0.3, die).start()


def hasty_next_step(size: int, transport: Transport, rank: int, clock: Clock) -> None:
    """The last rank is refused its second step while the others still finish the first."""
    pipe, module = make(transport, rank, size, clock)
    x, y = batch()
    if rank == 0:
        slow_down(module)
    clock.call(lambda: pipe.step(x, target=y))
    if rank == size - 1:
        clock.begin()
        clock.call(lambda: pipe.step(x[:1], target=y[:1]))
    else:
        clock.call(lambda: pipe.step(x, target=y))
    clock.call(lambda: pipe.step(x, target=y))
