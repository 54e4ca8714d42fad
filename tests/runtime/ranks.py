"""What the processes of the multi-process tests run: pipelines over many families, one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from tests.reference import WIDTH, gradients, linear_tanh, mse, reference
from torch import Tensor, nn

import fullbore as fb
from fullbore.runtime import P2PTransport, Pipeline, Stage, Transport


@dataclass(frozen=True)
class Case:
    """One pipeline: a family and its size, how it is lowered, and the lengths of its batches."""

    name: str
    num_ranks: int
    num_microbatches: int
    stages_per_rank: int | None = None
    lowering: dict[str, Any] = field(default_factory=dict)
    lengths: tuple[int, ...] = (3,)
    kind: str = "linear"

    def schedule(self) -> fb.Schedule:
        plan = fb.build(
            self.name,
            num_ranks=self.num_ranks,
            num_microbatches=self.num_microbatches,
            stages_per_rank=self.stages_per_rank,
        )
        return fb.lower(plan, **self.lowering)

    def modules(self) -> list[nn.Module]:
        num_stages = self.schedule().num_stages
        if self.kind == "mixed":
            torch.manual_seed(0)
            return [Mixed(last=s == num_stages - 1) for s in range(num_stages)]
        return linear_tanh(num_stages)

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        torch.manual_seed(1)
        rows = 2 * self.num_microbatches
        shapes = [(rows, length, WIDTH) for length in self.lengths]
        return [(torch.randn(shape), torch.randn(shape)) for shape in shapes]

    def wanted(self) -> Any:
        """The unpipelined model's gradients and losses after all batches."""
        modules, losses = self.modules(), []
        for x, y in self.batches():
            parts = [(part,) for part in x.tensor_split(self.num_microbatches)]
            weights = [1 / self.num_microbatches] * self.num_microbatches
            targets = y.tensor_split(self.num_microbatches)
            result = reference(modules, parts, targets, weights=weights, on_copy=False)
            losses.append(result.losses)
        return gradients(modules), losses


class Mixed(nn.Module):
    """Hands on floats and integers, plain values and nothing, in a dict within a tuple."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.last = last

    def forward(self, h: Tensor, extra: dict[str, Any] | None = None) -> Any:
        count = 0 if extra is None else extra["count"]
        if extra is not None:
            assert extra["none"] is None
            assert extra["mask"].dtype == torch.long
            assert int(extra["mask"].sum()) == h.shape[0]
            h = h + extra["unused"].detach()
        out = self.linear(h).tanh()
        if self.last:
            assert isinstance(out, Tensor)
            return out
        mask = torch.ones(h.shape[0], dtype=torch.long)
        strided = out.transpose(0, 1).contiguous().transpose(0, 1)
        return strided, {"count": count + 1, "none": None, "mask": mask, "unused": out * 0.5}


def run_case(transport: Transport, rank: int, case: Case) -> Any:
    """This rank's stages' gradients by stage, and losses by batch (the last stage's rank)."""
    plan, modules = case.schedule(), case.modules()
    own = plan.placement.stages_of(rank)
    stages = [Stage(modules[s], s, len(modules)) for s in own]
    pipe = Pipeline(stages, plan, loss_fn=mse, transport=transport)
    losses = []
    for x, y in case.batches():
        before = pipe.eval(x, target=y)
        out = pipe.step(x, target=y)
        losses.append(out.losses)
        if out.losses is not None:
            assert before.losses is not None
            assert all(map(torch.equal, before.losses, out.losses))
    found = gradients([modules[s] for s in own])
    return dict(zip(own, found, strict=True)), losses


def run_over_gloo(rank: int, size: int, case: Case) -> Any:
    """One case on a process group."""
    transport = P2PTransport(timeout=60.0)
    try:
        return run_case(transport, rank, case)
    finally:
        transport.close()


def run_cases(transport: Transport, rank: int, cases: list[Case]) -> list[Any]:
    """All cases on one transport."""
    return [run_case(transport, rank, case) for case in cases]
