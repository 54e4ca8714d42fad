"""A small language model in pieces, and a training loop as torchtitan has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fullbore.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from fullbore.pipelining.stage import PipelineStage

VOCABULARY, WIDTH, LENGTH, IGNORED = 11, 8, 5, -100


class Piece(nn.Module):
    """A layer; with the embedding before it in the first stage, and the head after the last."""

    def __init__(self, *, first: bool, last: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH) if first else None
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY) if last else None

    def forward(self, value: Tensor, *, shift: Tensor) -> Any:
        hidden = value if self.embed is None else self.embed(value)
        hidden = hidden + (self.layer(hidden) + shift).tanh()
        return hidden if self.head is None else self.head(hidden)


def pieces(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [Piece(first=i == 0, last=i == count - 1) for i in range(count)]


def token_loss(logits: Tensor, labels: Tensor, *, global_valid_tokens: float = 1.0) -> Tensor:
    """The sum over tokens, by the number of tokens of the whole batch."""
    total = cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return total / global_valid_tokens


@dataclass
class Data:
    """A batch in microbatches, some of whose tokens do not count."""

    count: int
    inputs: list[Tensor] = field(init=False)
    labels: list[Tensor] = field(init=False)
    named: list[dict[str, Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(2)
        shape = (2, LENGTH)
        self.inputs = [torch.randint(VOCABULARY, shape) for _ in range(self.count)]
        self.labels = [torch.randint(VOCABULARY, shape) for _ in range(self.count)]
        for m, labels in enumerate(self.labels):
            labels[0, : m % LENGTH] = IGNORED
        self.named = [{"shift": torch.randn(WIDTH)} for _ in range(self.count)]

    @property
    def tokens(self) -> float:
        return float(sum(int((labels != IGNORED).sum()) for labels in self.labels))


def make(name: str, modules: Sequence[nn.Module], own: Sequence[int], count: int) -> Any:
    """A schedule as torchtitan makes one: stages first, their modules afterwards."""
    kind = get_schedule_class(name)
    device = torch.device("cpu")
    stages = [
        PipelineStage(nn.Identity(), s, len(modules), device, group=None, get_mesh=None)
        for s in own
    ]
    for stage in stages:
        stage.submod = modules[stage.stage_index]
    if issubclass(kind, PipelineScheduleMulti):
        return kind(
            stages,
            n_microbatches=count,
            loss_fn=token_loss,
            scale_grads=False,
            backward_requires_autograd=True,
        )
    return kind(stages[0], n_microbatches=count, loss_fn=token_loss, scale_grads=False)


def train(schedule: Any, own: Sequence[int], data: Data, *, steps: int) -> tuple[Any, Any]:
    """The losses of the last step and of an evaluation after it."""
    first, last = 0 in own, schedule._num_stages - 1 in own
    inputs = [(ids,) for ids in data.inputs] if first else None
    labels = data.labels if last else None
    losses: list[Tensor] | None = [] if last else None
    for _ in range(steps):
        output = schedule.step(
            arg_mbs=inputs,
            kwarg_mbs=data.named,
            target_mbs=labels,
            losses=losses,
            loss_kwargs={"global_valid_tokens": data.tokens},
            return_outputs=False,
        )
        assert output is None
    evaluated: list[Tensor] | None = [] if last else None
    schedule.eval(arg_mbs=inputs, kwarg_mbs=data.named, target_mbs=labels, losses=evaluated)
    return losses, evaluated


def train_in_processes(rank: int, size: int, name: str, count: int) -> Any:
    """This rank's gradients by stage, and its losses."""
    number = size if name in ("1F1B", "GPipe") else 2 * size
    own = {"ZBVZeroBubble": [rank, number - 1 - rank], "1F1B": [rank]}[name]
    modules, data = pieces(number), Data(count)
    schedule = make(name, modules, own, count)
    losses, evaluated = train(schedule, own, data, steps=1)
    schedule.close()
    found = {s: {n: p.grad for n, p in modules[s].named_parameters()} for s in own}
    return found, losses, evaluated
