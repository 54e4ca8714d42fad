"""One program of training, run by a plain loop on the whole model and by a pipeline on its parts.

Every file of this folder is a column of docs/compatibility.md, every family a row; a cell is the
outcome of ``test_works[FAMILY]`` or ``test_refused[FAMILY]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytest
import torch
from tests.compositions.page import FAMILIES
from tests.pool import Pool
from tests.reference import WIDTH, assert_same, mse
from torch import Tensor, nn
from torch.optim import Optimizer

import fullbore as fb
from fullbore.ir import Schedule
from fullbore.runtime import (
    GradScaler,
    LocalTransport,
    P2PTransport,
    Pipeline,
    Stage,
    Transport,
    clip_grad_norm_,
    microbatch_seed,
)
from fullbore.verify import accumulates_in_order

families = pytest.mark.parametrize("family", FAMILIES)
ON_PROCESSES = ("1f1b", "zbv_zero_bubble")
RANKS, LAYERS, COUNT = 2, 4, 4

Batch = Sequence[tuple[Tensor, Tensor]]
Make = Callable[[], list[nn.Module]]


class Part(nn.Module):
    """Some layers, under the names that they have in the whole model."""

    def __init__(self, layers: dict[str, nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)

    def forward(self, *given: Any) -> Any:
        h = given[0] if len(given) == 1 else given
        for layer in self.layers.values():
            h = layer(h)
        return h


def linears() -> list[nn.Module]:
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]


def even(step: int) -> Batch:
    """Microbatches of two rows each."""
    torch.manual_seed(100 + step)
    return [(torch.randn(2, WIDTH), torch.randn(2, WIDTH)) for _ in range(COUNT)]


def as_it_is(module: nn.Module) -> nn.Module:
    return module


@dataclass(frozen=True)
class Program:
    """What is trained and how.

    Attributes:
        make: the layers.
        prepare: what becomes of a stage's module, and not of the unpipelined model.
        batches: the microbatches of a step.
        around: a context around each step.
        optimizer: None to let gradients accumulate over all steps.
        each: one optimizer for each stage rather than for each process.
        every: an update every so many steps.
        max_norm: gradients are clipped to it.
        scale: the loss scale to start with; the gradients of ``overflow`` become infinite.
        seeds: dropout is seeded by step and microbatch.
        evaluates: an evaluation before each step.
        tied: layer and name of two parameters that are one.
        exact: whether the operations themselves are those of the unpipelined model.
    """

    make: Make = linears
    prepare: Callable[[nn.Module], nn.Module] = as_it_is
    batches: Callable[[int], Batch] = even
    loss_fn: Callable[..., Tensor] = mse
    steps: int = 2
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    optimizer: Callable[[Iterable[Tensor]], Optimizer] | None = None
    each: bool = False
    every: int = 1
    max_norm: float | None = None
    scale: float | None = None
    overflow: int | None = None
    seeds: bool = False
    evaluates: bool = False
    tied: tuple[str, str] | None = None
    exact: bool = True

    def layers(self) -> dict[str, nn.Module]:
        torch.manual_seed(0)
        return {str(i): layer for i, layer in enumerate(self.make())}


@dataclass
class Result:
    """What came out, on this process: losses and evaluations by step, norms, and the parameters and
    their gradients at the end, by the unsplit model's names."""

    losses: list[Sequence[Tensor] | None] = field(default_factory=list)
    evaluations: list[Sequence[Tensor] | None] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor | None] = field(default_factory=dict)

    def keep(self, parts: Iterable[nn.Module]) -> None:
        for part in parts:
            for name, parameter in part.named_parameters(remove_duplicate=False):
                gradient = parameter.grad
                self.weights[name] = parameter.detach().clone()
                self.gradients[name] = None if gradient is None else gradient.clone()


def loop(program: Program) -> Result:
    """The unpipelined model."""
    model, result = Part(program.layers()), Result()
    optimizer = None if program.optimizer is None else program.optimizer(model.parameters())
    scaler = torch.amp.GradScaler("cpu", program.scale or 1.0, enabled=program.scale is not None)
    for step in range(program.steps):
        batch = program.batches(step)
        if program.evaluates:
            with torch.no_grad(), program.around():
                model.eval()
                result.evaluations.append([program.loss_fn(model(x), y) for x, y in batch])
                model.train()
        losses = []
        with program.around():
            for m, (x, y) in enumerate(batch):
                with microbatch_seed(step, m) if program.seeds else nullcontext():
                    loss = program.loss_fn(model(x), y)
                losses.append(loss.detach())
                scaler.scale(loss / len(batch)).backward()
        result.losses.append(losses)
        if optimizer is None or (step + 1) % program.every:
            continue
        if step == program.overflow:
            _overflow(model.layers["0"])
        if program.max_norm is not None:
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), program.max_norm)
            result.norms.append(norm)
        scaler.step(optimizer)
        scaler.update()
        result.scales.append(scaler.get_scale())
        if step + 1 < program.steps:
            optimizer.zero_grad()
    result.keep([model])
    return result


def plan(family: str) -> Schedule:
    return fb.build(family, num_ranks=RANKS, num_microbatches=COUNT)


def split(program: Program, schedule: Schedule, stages: Sequence[int]) -> dict[int, Part]:
    """The parts of these stages."""
    share, layers = LAYERS // schedule.num_stages, program.layers()
    return {
        s: Part({str(i): layers[str(i)] for i in range(s * share, (s + 1) * share)}) for s in stages
    }


def pipelined(
    program: Program, family: str, transport: Transport | None = None, rank: int | None = None
) -> Result:
    """All stages on the local engine, or those of one rank."""
    schedule, result = plan(family), Result()
    own = range(schedule.num_stages) if rank is None else schedule.placement.stages_of(rank)
    parts = split(program, schedule, own)
    pipe = Pipeline(
        [Stage(program.prepare(part), s, schedule.num_stages) for s, part in parts.items()],
        schedule,
        loss_fn=program.loss_fn,
        transport=transport or LocalTransport(),
        tied=_ties(program, schedule),
    )
    owned = nn.ModuleList(parts.values())
    optimizers: list[Optimizer] = []
    if program.optimizer is not None:
        groups = [part.parameters() for part in parts.values()] if program.each else None
        optimizers = [program.optimizer(group) for group in groups or [owned.parameters()]]
    enabled = program.scale is not None
    scaler = GradScaler("cpu", program.scale or 1.0, enabled=enabled, pipeline=pipe)
    for step in range(program.steps):
        xs, ys = zip(*program.batches(step), strict=True)
        given: dict[str, Any] = {"arg_mbs": xs, "target_mbs": ys}
        if program.evaluates:
            with program.around():
                result.evaluations.append(pipe.eval(**given).losses)
        seed = step if program.seeds else None
        with program.around():
            out = pipe.step(**given, loss_scale=scaler.get_scale(), seed=seed)
        result.losses.append(out.losses)
        if not optimizers or (step + 1) % program.every:
            continue
        if step == program.overflow and pipe.has_first:
            _overflow(parts[0].layers["0"])
        if program.max_norm is not None:
            scaler.unscale_(*optimizers)
            norm = clip_grad_norm_(owned.parameters(), program.max_norm, pipeline=pipe)
            result.norms.append(norm)
        scaler.step(*optimizers)
        scaler.update()
        result.scales.append(scaler.get_scale())
        for optimizer in optimizers:
            if step + 1 < program.steps:
                optimizer.zero_grad()
    result.keep(parts.values())
    return result


def check(program: Program, family: str) -> None:
    """On the local engine, it equals the unpipelined model."""
    compare([pipelined(program, family)], loop(program), family, exact=program.exact)


def check_on_processes(pool: Callable[[int], Pool], program: Program) -> None:
    """On two processes, too."""
    wanted, jobs = loop(program), pool(RANKS).run(_run_all, program)
    for index, family in enumerate(ON_PROCESSES):
        compare([job[index] for job in jobs], wanted, family, exact=program.exact)


def _run_all(rank: int, size: int, program: Program) -> list[Result]:
    results = []
    for family in ON_PROCESSES:
        transport = P2PTransport(timeout=60.0)
        try:
            results.append(pipelined(program, family, transport, rank))
        finally:
            transport.close()
    return results


def compare(found: Sequence[Result], wanted: Result, family: str, *, exact: bool) -> None:
    """Bit for bit where the schedule adds gradients up in the loop's order, else within noise."""
    exact = exact and all(accumulates_in_order(plan(family)))
    names = [name for result in found for name in result.weights]
    assert sorted(names) == sorted(wanted.weights)
    for result in found:
        assert result.scales == wanted.scales
        for norm, expected in zip(result.norms, wanted.norms, strict=True):
            torch.testing.assert_close(norm, expected)
        for name in result.weights:
            what = f"{family}: {name}"
            same = exact and not wanted.norms
            assert_same(result.weights[name], wanted.weights[name], exact=same, what=what)
            assert_same(result.gradients[name], wanted.gradients[name], exact=same, what=what)
    for kind in ("losses", "evaluations"):
        (last,) = [getattr(r, kind) for r in found if all(v is not None for v in r.losses)]
        for step, (values, expected) in enumerate(zip(last, getattr(wanted, kind), strict=True)):
            for value, loss in zip(values, expected, strict=True):
                # The first step's losses know nothing of any gradient.
                same = exact and not wanted.norms
                assert_same(value, loss, exact=same, what=f"{family}: {kind} of step {step}")


def _overflow(layer: nn.Module) -> None:
    gradient = next(layer.parameters()).grad
    assert gradient is not None
    gradient.view(-1)[0] = inf


def _ties(program: Program, schedule: Schedule) -> list[tuple[str, ...]]:
    if program.tied is None:
        return []
    share = LAYERS // schedule.num_stages
    return [tuple(f"{int(n.partition('.')[0]) // share}.layers.{n}" for n in program.tied)]
