"""The sides of ``bench.runtime``: the same stages, run by fullbore and by torch's own classes."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from bench.split_backward import Block
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

import fullbore as fb
from fullbore.runtime import Pipeline, Stage
from fullbore.runtime.transport import P2PTransport, SharedMemoryTransport, Transport
from fullbore.verify import accumulates_in_order

RANKS = 2
VOCABULARY = 256


@dataclass(frozen=True)
class Family:
    """A schedule, torch's class of it, and how many stages a rank holds."""

    name: str
    torch_class: type[Any]
    stages_per_rank: int


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("gpipe", schedules.ScheduleGPipe, 1),
        Family("1f1b", schedules.Schedule1F1B, 1),
        Family("looped_bfs", schedules.ScheduleLoopedBFS, 2),
        Family("interleaved_1f1b", schedules.ScheduleInterleaved1F1B, 2),
        Family("interleaved_zero_bubble", schedules.ScheduleInterleavedZeroBubble, 2),
        Family("zbv_zero_bubble", schedules.ScheduleZBVZeroBubble, 2),
        Family("dualpipev", schedules.ScheduleDualPipeV, 2),
    )
}


@dataclass(frozen=True)
class Config:
    """What is trained.

    Attributes:
        width, layers, tokens: of a language model over bytes, with heads of 64; no tokens stand for
            one linear layer a stage.
        rows: of one microbatch.
        microbatches: the numbers of microbatches to measure.
        steps: how many steps one measurement takes.
    """

    width: int
    layers: int
    tokens: int
    rows: int
    microbatches: tuple[int, ...]
    steps: int = 1


CONFIGS: Mapping[str, Config] = {
    "a": Config(256, 8, 128, 2, (8, 16)),
    "b": Config(512, 8, 256, 1, (8,)),
    "tiny": Config(8, 0, 0, 1, (64,), steps=5),
    "test": Config(64, 4, 16, 1, (4,)),
}


class Embedding(nn.Module):
    """Bytes to vectors."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.randn(tokens, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Adds each position's own vector."""
        result: Tensor = self.bytes(x) + self.positions
        return result


class Head(nn.Module):
    """Vectors to logits."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Of the normalised vectors."""
        result: Tensor = self.out(self.norm(x))
        return result


class Model:
    """The layers of a configuration, the same in every process, and one batch for them."""

    def __init__(self, config: Config, num_microbatches: int) -> None:
        torch.manual_seed(0)
        self.config, rows = config, config.rows * num_microbatches
        if config.tokens:
            blocks = [Block(config.width) for _ in range(config.layers)]
            embedding, head = Embedding(config.tokens, config.width), Head(config.width)
            self.layers: list[list[nn.Module]] = [[block] for block in blocks]
            self.layers[0].insert(0, embedding)
            self.layers[-1].append(head)
            self.x = torch.randint(VOCABULARY, (rows, config.tokens))
            self.y = torch.randint(VOCABULARY, (rows, config.tokens))
        else:
            self.layers = [[nn.Linear(config.width, config.width)] for _ in range(2 * RANKS)]
            self.x, self.y = torch.randn(rows, config.width), torch.randn(rows, config.width)

    def stage(self, index: int, num_stages: int) -> nn.Module:
        """One stage; stages of different splits share their layers."""
        if not self.config.tokens:
            return self.layers[index][0]
        size = len(self.layers) // num_stages
        parts = [m for layer in self.layers[index * size : (index + 1) * size] for m in layer]
        return nn.Sequential(*parts)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean loss of a microbatch."""
        if self.config.tokens:
            return F.cross_entropy(output.flatten(0, 1), target.flatten())
        return F.mse_loss(output, target)

    def forget_gradients(self) -> None:
        """Make every gradient None."""
        for layer in self.layers:
            for module in layer:
                module.zero_grad()


class Side(Protocol):
    """One way to run a step on this rank."""

    def step(self) -> list[Tensor]:
        """Run it; gives the losses on the rank of the last stage, else nothing."""

    def close(self) -> None:
        """Let go of connections."""


@dataclass(frozen=True)
class Setup:
    """One family on one rank.

    Attributes:
        schedule: lowered.
        modules: this rank's stages by index.
    """

    family: Family
    rank: int
    model: Model
    schedule: fb.Schedule
    modules: Mapping[int, nn.Module]

    @classmethod
    def make(cls, family: Family, rank: int, model: Model, num_microbatches: int) -> Setup:
        """Build and lower the schedule, and pick the rank's stages."""
        schedule = fb.lower(
            fb.build(
                family.name,
                num_ranks=RANKS,
                num_microbatches=num_microbatches,
                stages_per_rank=family.stages_per_rank,
            )
        )
        modules = {
            stage: model.stage(stage, schedule.num_stages)
            for stage, place in enumerate(schedule.placement.ranks)
            if place == rank
        }
        return cls(family, rank, model, schedule, modules)

    @property
    def args(self) -> tuple[Tensor, ...]:
        """The positional arguments of ``step`` on this rank."""
        return (self.model.x,) if 0 in self.modules else ()

    @property
    def target(self) -> Tensor | None:
        """The target on this rank."""
        return self.model.y if self.schedule.num_stages - 1 in self.modules else None

    def gradients(self) -> list[Tensor]:
        """Copies of this rank's gradients."""
        parameters = (p for module in self.modules.values() for p in module.parameters())
        return [p.grad.clone() for p in parameters if p.grad is not None]


class TorchSide:
    """Torch's class of the schedule, on the default group."""

    def __init__(self, setup: Setup) -> None:
        schedule = setup.schedule
        stages = [
            PipelineStage(module, stage, schedule.num_stages, torch.device("cpu"))
            for stage, module in setup.modules.items()
        ]
        single = setup.family.stages_per_rank == 1
        self._schedule = setup.family.torch_class(
            stages[0] if single else stages, schedule.num_microbatches, loss_fn=setup.model.loss
        )
        self._args, self._target = setup.args, setup.target

    def step(self) -> list[Tensor]:
        """See ``Side``."""
        losses: list[Tensor] = []
        self._schedule.step(*self._args, target=self._target, losses=losses, return_outputs=False)
        return losses

    def close(self) -> None:
        """The default group is not its own."""


class OwnSide:
    """fullbore on a transport of its own."""

    def __init__(self, setup: Setup, transport: Transport) -> None:
        stages = [
            Stage(module, stage, setup.schedule.num_stages)
            for stage, module in setup.modules.items()
        ]
        self._pipeline = Pipeline(
            stages, setup.schedule, loss_fn=setup.model.loss, transport=transport
        )
        self._args, self._target = setup.args, setup.target

    def step(self) -> list[Tensor]:
        """See ``Side``."""
        losses = self._pipeline.step(*self._args, target=self._target).losses
        return list(losses or ())

    def close(self) -> None:
        """Of its transport."""
        self._pipeline.close()


Sockets = Mapping[int, socket.socket]


def make_side(setup: Setup, name: str, sockets: Sockets) -> Side:
    """The side called ``torch``, ``shm`` or ``p2p``."""
    if name == "torch":
        return TorchSide(setup)
    shared = name == "shm"
    return OwnSide(setup, SharedMemoryTransport(setup.rank, sockets) if shared else P2PTransport())


class LocalBound:
    """What no schedule can be faster than: every rank computes its half of the model for all
    microbatches, at the same time, and never waits or sends."""

    def __init__(self, model: Model, rank: int, num_microbatches: int) -> None:
        self._module, self._model = model.stage(rank, RANKS), model
        self._last = rank == RANKS - 1
        self._targets = model.y.tensor_split(num_microbatches)
        self._inputs: Sequence[Tensor] = model.x.tensor_split(num_microbatches)
        if rank:
            shape = (model.config.rows, model.config.tokens, model.config.width)
            self._inputs = [torch.randn(shape) for _ in range(num_microbatches)]
        with torch.no_grad():
            output = self._module(self._inputs[0])
        self._dy, self._weight = torch.full_like(output, 1e-3), torch.tensor(1 / num_microbatches)

    def step(self) -> list[Tensor]:
        """Gives no losses."""
        for x, target in zip(self._inputs, self._targets, strict=True):
            leaf = x.detach().requires_grad_() if self._last else x
            output = self._module(leaf)
            if self._last:
                self._model.loss(output, target).backward(self._weight)
            else:
                output.backward(self._dy)
        return []

    def close(self) -> None:
        """It has no connections."""


def compare(sides: Mapping[str, Side], setup: Setup) -> dict[str, float]:
    """The largest difference of a gradient or loss between torch and each other side, one step
    each, relative to the largest gradient; exactly 0 where all bits agree.

    Raises:
        ValueError: they differ where the order of accumulation is the same as in a plain loop over
            the microbatches, or by more than float noise.
    """
    found: dict[str, list[Tensor]] = {}
    for name, side in sides.items():
        setup.model.forget_gradients()
        losses = side.step()
        found[name] = [*setup.gradients(), *(loss.detach() for loss in losses)]
    wanted = found.pop("torch")
    scale = max(float(tensor.abs().max()) for tensor in wanted)
    limit = 0.0 if all(accumulates_in_order(setup.schedule)) else 1e-5
    result = {}
    for name, values in found.items():
        pairs = zip(values, wanted, strict=True)
        result[name] = max(float((mine - other).abs().max()) for mine, other in pairs) / scale
        if not result[name] <= limit:
            raise ValueError(f"{setup.family.name}, {name}: {result[name]:g} away from torch")
    return result
