"""What the cases of section C run: a model, batches, and what the plain loop makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from tests.pool import Pool
from tests.reference import WIDTH, assert_same, gradients, mse, reference
from torch import Tensor, nn

import fullbore as fb
from fullbore.ir import Schedule
from fullbore.runtime import (
    LocalTransport,
    P2PTransport,
    Pipeline,
    SharedMemoryTransport,
    Stage,
    StepOutput,
    Transport,
)
from fullbore.runtime.transport.shm import socket_pairs
from fullbore.verify import accumulates_in_order

COUNT = 4
"""M, unless a scenario says otherwise."""

Loss = Callable[..., Tensor]


@dataclass
class Call:
    """One step: what ``step`` is given, and the microbatches that the plain loop gets."""

    args: tuple[Any, ...]
    given: dict[str, Any]
    micro: Sequence[tuple[Any, ...]]
    targets: Sequence[Any]
    kwargs: Sequence[dict[str, Any]] | None = None
    weights: Sequence[float] | None = None


@dataclass
class Scenario:
    """A pipeline and the steps that it makes."""

    plan: Schedule
    modules: list[nn.Module]
    calls: list[Call]
    loss_fn: Loss = mse
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Outcome:
    """What a rank saw: its stages' gradients, and what every step gave."""

    gradients: dict[int, dict[str, Tensor | None]]
    steps: list[StepOutput]


def run(scenario: Scenario, transport: Transport, rank: int | None = None) -> Outcome:
    """All steps, on one rank or on all."""
    plan, modules = scenario.plan, scenario.modules
    own = range(plan.num_stages) if rank is None else plan.placement.stages_of(rank)
    stages = [Stage(modules[s], s, plan.num_stages) for s in own]
    pipe = Pipeline(stages, plan, transport=transport, loss_fn=scenario.loss_fn, **scenario.options)
    steps = [pipe.step(*call.args, return_outputs=True, **call.given) for call in scenario.calls]
    found = gradients([modules[s] for s in own])
    return Outcome(dict(zip(own, found, strict=True)), steps)


Make = Callable[[str], Scenario]
Runner = Callable[[Make, str], list[Outcome]]
"""``runner(make, family)``: the outcome of every process, of ``make(family)``."""


def local(make: Make, family: str) -> list[Outcome]:
    return [run(make(family), LocalTransport())]


def shared_memory(make: Make, family: str) -> list[Outcome]:
    """Every rank in a thread of its own; they share nothing but messages."""
    ends = socket_pairs(2)

    def play(rank: int, scenario: Scenario) -> Outcome:
        transport = SharedMemoryTransport(rank, ends[rank], timeout=30.0)
        try:
            return run(scenario, transport, rank)
        finally:
            transport.close()

    scenarios = [make(family) for _ in ends]
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(play, range(2), scenarios))


def processes(pool: Callable[[int], Pool]) -> Runner:
    """Every rank in a process of its own, over gloo."""

    def runner(make: Make, family: str) -> list[Outcome]:
        return pool(2).run(_over_gloo, make, family)

    return runner


def _over_gloo(rank: int, size: int, make: Make, family: str) -> Outcome:
    transport = P2PTransport(timeout=30.0)
    try:
        return run(make(family), transport, rank)
    finally:
        dist.barrier()  # nobody takes the end for an early goodbye
        transport.close()


def assert_right(make: Make, family: str, outcomes: Sequence[Outcome]) -> None:
    """Gradients, losses and outputs equal the plain loop's, every stage's somewhere."""
    scenario = make(family)
    modules, exact = deepcopy(scenario.modules), accumulates_in_order(scenario.plan)
    count = scenario.plan.num_microbatches
    seen: set[int] = set()
    last = next(o for o in outcomes if scenario.plan.num_stages - 1 in o.gradients)
    for call, out in zip(scenario.calls, last.steps, strict=True):
        wanted = reference(
            modules,
            call.micro,
            call.targets,
            weights=call.weights or [1 / count] * count,
            loss_fn=scenario.loss_fn,
            kwargs=call.kwargs,
            on_copy=False,
        )
        assert out.losses is not None
        assert out.outputs is not None
        for m in range(count):
            assert_same(out.losses[m], wanted.losses[m], exact=True, what=f"loss {m}")
            assert_same(out.outputs[m], wanted.outputs[m].detach(), exact=True, what=f"output {m}")
    once = len(scenario.calls) == 1
    for outcome in outcomes:
        seen |= outcome.gradients.keys()
        for stage, found in outcome.gradients.items():
            for name, parameter in modules[stage].named_parameters():
                what = f"stage {stage} {name}"
                assert_same(found[name], parameter.grad, exact=exact[stage] and once, what=what)
    assert seen == set(range(scenario.plan.num_stages))


def batch(*shape: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randn(shape), torch.randn(shape)


def split_call(x: Tensor, y: Tensor, count: int, **more: Any) -> Call:
    """A batch that fullbore cuts."""
    parts = x.tensor_split(count)
    weights = [len(part) / len(x) for part in parts]
    micro = [(part,) for part in parts]
    return Call((x,), {"target": y}, micro, y.tensor_split(count), weights=weights, **more)


def check(runner: Runner, make: Make, family: str) -> None:
    assert_right(make, family, runner(make, family))


def plan_of(family: str) -> fb.Schedule:
    return fb.build(family, num_ranks=2, num_microbatches=COUNT)


class Take(nn.Module):
    """A linear layer on what ``take`` finds in the input; ``give`` makes the output of it."""

    def __init__(self, take: Any = None, give: Any = None) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.take, self.give = take, give

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        h = args[0] if self.take is None else self.take(*args, **kwargs)
        out = self.linear(h).tanh()
        return out if self.give is None else self.give(out, *args)


def between(family: str, first: Any, middle: Any, last: Any, **more: Any) -> Scenario:
    """Stages made by these functions; the boundary is their business."""
    plan = plan_of(family)
    torch.manual_seed(0)
    modules = [first(), *(middle() for _ in range(plan.num_stages - 2)), last()]
    return Scenario(plan, modules, [split_call(*batch(8, WIDTH), COUNT)], **more)
