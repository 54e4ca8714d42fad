"""What the processes of ``test_across.py`` run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from tests.pipelining.programs import CSV, DEVICE, batches, layers, mean_square
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from fullbore.pipelining import PipelineStage, Schedule1F1B, ScheduleZBVZeroBubble
from fullbore.pipelining.schedules import _Action, _PipelineScheduleRuntime, get_schedule_class


def failure(call: Callable[[], Any]) -> str:
    """The type and text of what ``call`` raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
        return f"{type(error).__name__}: {error}"
    return "no error"


def bad_arguments_on_one_rank(rank: int, size: int) -> list[str]:
    """Rank 1 gives what cannot be used, in several ways; a good step follows each."""
    (module,) = layers(size)[rank : rank + 1]
    schedule = Schedule1F1B(PipelineStage(module, rank, size, DEVICE), 4, mean_square)
    x, y = batches(1)[0]
    bad: list[dict[str, Any]] = [
        {"target_mbs": (y,)},
        {"target": y, "losses": ()},
        {"target": y[:3]},
        {"losses": []},
    ]
    found = []
    for given in bad:
        call = partial(schedule.step, **given) if rank else partial(schedule.step, x)
        found.append(failure(call))
        schedule.step(x, target=y)
    if rank:
        with torch.no_grad():
            found.append(failure(lambda: schedule.step(target=y)))
    else:
        found.append(failure(lambda: schedule.step(x)))
    schedule.close()
    return found


def no_schedule_on_one_rank(rank: int, size: int) -> list[str]:
    """Rank 1 has no order to run; then it has one."""
    modules = layers(2 * size)
    made = [PipelineStage(modules[s], s, 2 * size, DEVICE) for s in (rank, rank + size)]
    schedule, order = _PipelineScheduleRuntime(made, 4, mean_square), [*CSV.split()]
    actions = {r: [_Action.from_str(c) for c in row.split(",")] for r, row in enumerate(order)}
    x, y = batches(1)[0]
    found = []
    for ready in (rank == 0, True):
        if ready:
            schedule._prepare_schedule_with_comms(actions)
        found.append(failure(partial(schedule.step, x, target=y)))
    schedule.close()
    return found


def shared_losses(rank: int, size: int) -> tuple[list[Tensor], list[Tensor], int]:
    """The losses of a step and of an evaluation, asked for on every rank."""
    own, modules = (rank, 2 * size - 1 - rank), layers(2 * size)
    made = [PipelineStage(modules[s], s, 2 * size, DEVICE) for s in own]
    schedule = ScheduleZBVZeroBubble(made, 4, mean_square)
    schedule.share_losses = True
    x, y = batches(1)[0]
    losses: tuple[list[Tensor], list[Tensor]] = [], []
    last = rank == schedule.loss_rank
    schedule.step(x, target=y if last else None, losses=losses[0])
    schedule.eval(x, target=y if last else None, losses=losses[1])
    schedule.close()
    return *losses, schedule.loss_rank


def modules_replaced(rank: int, size: int) -> list[str]:
    """After the first step: refused, unless all ranks close their schedules."""
    modules = layers(size)
    stage = PipelineStage(modules[rank], rank, size, DEVICE)
    schedule = Schedule1F1B(stage, 4, mean_square)
    x, y = batches(1)[0]
    schedule.step(x, target=y)
    stage.submod = nn.Linear(8, 8)
    found = [failure(lambda: schedule.step(x, target=y))]
    schedule.close()
    found.append(failure(lambda: schedule.step(x, target=y)))
    schedule.close()
    return [*found, str(stage.submod.weight.grad is not None)]


def replicas(rank: int, size: int, name: str, wrapped: str) -> Any:
    """Two replicas of a pipeline of two ranks, whose modules are sharded or replicated."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    pipe, copies = mesh["pp"].get_group(), mesh["dp"]
    position, replica = dist.get_rank(pipe), mesh["dp"].get_local_rank()
    own, modules = (position, 3 - position), layers(4)
    made = [PipelineStage(modules[s], s, 4, DEVICE, group=pipe, get_mesh=None) for s in own]
    for stage in made:
        if wrapped == "fsdp2":
            fully_shard(stage.submod, mesh=copies)
        else:
            stage.submod = DistributedDataParallel(stage.submod, process_group=copies.get_group())
    schedule = get_schedule_class(name)(made, 4, mean_square)
    assert schedule.rank == position
    x, y = batches(2)[replica]
    schedule.step(x, target=y)
    schedule.close()
    return {s: [whole(p.grad) for p in modules[s].parameters()] for s in own}


def whole(tensor: Tensor | None) -> Tensor | None:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class Column(nn.Module):
    """A linear layer whose columns are on several ranks: gives a DTensor."""

    def __init__(self, layer: nn.Linear, mesh: DeviceMesh) -> None:
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [Shard(0)]))
        self.mesh = mesh

    def forward(self, x: Tensor) -> Tensor:
        whole = DTensor.from_local(x, self.mesh, [Replicate()], run_check=False)
        return torch.nn.functional.linear(whole, self.weight).tanh()


class Row(nn.Module):
    """The layer after it: takes the DTensor; what it gives is to be summed over the ranks."""

    def __init__(self, layer: nn.Linear, mesh: DeviceMesh) -> None:
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [Shard(1)]))

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(x, DTensor)
        assert x.placements == (Shard(1),)
        summed = torch.nn.functional.linear(x, self.weight)
        assert isinstance(summed, DTensor)
        return summed.redistribute(placements=[Replicate()])


def square(output: Tensor, target: Tensor) -> Tensor:
    """Of a DTensor, a DTensor."""
    assert isinstance(output, DTensor)
    target = DTensor.from_local(target, output.device_mesh, [Replicate()], run_check=False)
    return (output - target).square().mean()


def linears() -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(8, 8, bias=False) for _ in range(2)]


def tensor_parallel(rank: int, size: int, api: str) -> Any:
    """Two stages of two ranks each, with a DTensor between them: the weight's gradient."""
    pipelining = import_module(api)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    group, position = mesh["pp"].get_group(), mesh["pp"].get_local_rank()
    asked: list[tuple[str, ...]] = []

    def get_mesh(names: tuple[str, ...], layout: Any) -> DeviceMesh:
        asked.append(names)
        assert layout == mesh["tp"]._layout
        return mesh["tp"]

    module = (Column, Row)[position](linears()[position], mesh["tp"])
    stage = pipelining.PipelineStage(module, position, 2, DEVICE, group=group, get_mesh=get_mesh)
    schedule = pipelining.Schedule1F1B(stage, 4, square)
    kept: list[Any] = []
    for x, y in batches(2):
        if position == 0:
            schedule.step(x)
        else:
            losses: list[Tensor] = []
            output = schedule.step(target=y, losses=losses)
            kept += [whole(output.detach()), [whole(loss.detach()) for loss in losses]]
        kept.append(whole(module.weight.grad))
        module.zero_grad()
    assert position == 0 or set(asked) == {("tp",)}
    hooks = len(module._forward_hooks) + len(module._forward_pre_hooks)
    if api.startswith("fullbore"):
        schedule.close()
    return position, kept, hooks
