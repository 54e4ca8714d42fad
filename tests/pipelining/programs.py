"""Programs written against torch.distributed.pipelining. ``api`` is the module that they import
from: all that is changed to run them on fullbore."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 8
DEVICE = torch.device("cpu")


def layers(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]


def batches(count: int, rows: int = 8) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)) for _ in range(count)]


def mean_square(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def manual(rank: int, size: int, api: str, name: str, microbatches: int) -> Any:
    """Stages cut by hand, three training steps, one evaluation."""
    pipelining, schedules = import_module(api), import_module(f"{api}.schedules")
    kind = schedules.get_schedule_class(name)
    several = issubclass(kind, schedules.PipelineScheduleMulti)
    vee = kind in (pipelining.ScheduleZBVZeroBubble, pipelining.ScheduleDualPipeV)
    number = 2 * size if several else size
    own = [rank] if not several else [rank, number - 1 - rank if vee else rank + size]
    modules = layers(number)
    stages = [pipelining.PipelineStage(modules[s], s, number, DEVICE) for s in own]
    schedule = kind(stages if several else stages[0], microbatches, loss_fn=mean_square)
    parameters = [p for s in own for p in modules[s].parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    kept: list[Any] = []
    for x, y in batches(3):
        optimizer.zero_grad()
        losses: list[Tensor] = []
        first, last = 0 in own, number - 1 in own
        arguments = (x,) if first else ()
        if last:
            output = schedule.step(*arguments, target=y, losses=losses)
            kept += [output.detach(), *(loss.detach() for loss in losses)]
        else:
            assert schedule.step(*arguments) is None
            assert not losses
        kept += [p.grad.clone() for p in parameters if p.grad is not None]
        optimizer.step()
    if not vee:  # torch can't evaluate where neighbouring stages share a rank
        x, y = batches(1)[0]
        output = schedule.eval(*((x,) if first else ()), target=y if last else None)
        kept.append(None if output is None else output.detach())
    return kept


class Model(nn.Module):
    """Hands two tensors from its first part to its second."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.mix = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        hidden = self.embed(x)
        mixed = self.mix(hidden.tanh()) + shift
        result: Tensor = self.head(mixed) * hidden
        return result


def traced(rank: int, size: int, api: str, by: str) -> Any:
    """A traced model, split before ``head``."""
    pipelining = import_module(api)
    x, y = batches(1)[0]
    shift = torch.randn(8, WIDTH)
    pipe = pipelining.pipeline(
        Model(),
        (x[:2], shift[:2]),
        split_spec={"head": pipelining.SplitPoint.BEGINNING},
    )
    if by == "build_stage":
        module = pipe.get_stage_module(rank)
        stage = pipelining.build_stage(module, rank, pipe.info(), DEVICE)
    else:
        stage = pipe.build_stage(rank, DEVICE)
    schedule = pipelining.Schedule1F1B(stage, 4, loss_fn=mean_square)
    losses: list[Tensor] = []
    output = None
    if rank == 0:
        schedule.step(x, shift)
    else:
        output = schedule.step(target=y, losses=losses)
    gradients = {name: p.grad for name, p in stage.submod.named_parameters()}
    return None if output is None else output.detach(), [v.detach() for v in losses], gradients


CSV = """\
0F0,0F1,2F0,2F1,2B0,0F2,0F3,2B1,0B0,2F2,0B1,2F3,2B2,2B3,0B2,0B3
1F0,1F1,3F0,3I0,3W0,1F2,3F1,3I1,1B0,3W1,1F3,1B1,3F2,3B2,3F3,3B3,1I2,1W2,1I3,1W3
"""


def from_csv(rank: int, size: int, api: str, folder: str) -> Any:
    """A schedule in a file, with two stages a rank; run from what it was dumped to as well."""
    pipelining, schedules = import_module(api), import_module(f"{api}.schedules")
    modules, own = layers(4), [rank, rank + 2]

    def make() -> Any:
        stages = [pipelining.PipelineStage(modules[s], s, 4, DEVICE) for s in own]
        return schedules._PipelineScheduleRuntime(
            stages, n_microbatches=4, loss_fn=mean_square, scale_grads=False
        )

    schedule = make()
    schedule._load_csv(f"{folder}/compute.csv", format="compute_only")
    dumped = f"{folder}/{api}-{rank}.csv"
    schedule._dump_csv(dumped, format="compute_comms")
    again = make()
    again._load_csv(dumped, format="compute_comms")
    order = {r: [str(a) for a in p] for r, p in schedule.pipeline_order_with_comms.items()}
    kept: list[Any] = [order]
    for chosen, (x, y) in zip((schedule, again), batches(2), strict=True):
        losses: list[Tensor] = []
        if rank == 0:
            chosen.step(x)
        else:
            kept.append(chosen.step(target=y, losses=losses).detach())
            kept += [loss.detach() for loss in losses]
    kept += [p.grad for s in own for p in modules[s].parameters()]
    return kept
