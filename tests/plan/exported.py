"""What the processes of ``test_exported.py`` run: a plan in a file, trained in three ways."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tests.pipelining.programs import DEVICE, batches, layers, mean_square

from fullbore.formats import load
from fullbore.runtime import P2PTransport, Pipeline, Stage

GRADIENTS = dict[str, Any]


def trained(rank: int, size: int, path: str, api: str) -> tuple[list[Any], GRADIENTS]:
    """One step under ``api``'s runtime for schedules in files: losses, and gradients by stage."""
    schedule = load(path)
    modules, own = layers(schedule.num_stages), schedule.placement.stages_of(rank)
    pipelining, schedules = import_module(api), import_module(f"{api}.schedules")
    stages = [
        pipelining.PipelineStage(modules[s], s, schedule.num_stages, DEVICE)
        for s in own
    ]  # fmt: skip
    runtime = schedules._PipelineScheduleRuntime(
        stages, n_microbatches=schedule.num_microbatches, loss_fn=mean_square
    )
    runtime._load_csv(path, format="compute_only")
    x, y = batches(1, rows=2 * schedule.num_microbatches)[0]
    losses: list[Any] = []
    last = schedule.num_stages - 1 in own
    given = {"target": y, "losses": losses} if last else {}
    runtime.step(*((x,) if 0 in own else ()), **given)
    return [loss.detach() for loss in losses], _gradients(modules, own)


def piped(rank: int, size: int, path: str) -> tuple[list[Any], GRADIENTS]:
    """The same with fullbore's own pipeline, over sockets."""
    schedule = load(path)
    modules, own = layers(schedule.num_stages), schedule.placement.stages_of(rank)
    stages = [Stage(modules[s], s, schedule.num_stages) for s in own]
    pipe = Pipeline(stages, schedule, loss_fn=mean_square, transport=P2PTransport())
    x, y = batches(1, rows=2 * schedule.num_microbatches)[0]
    out = pipe.step(x, target=y)
    pipe.close()
    return list(out.losses or ()), _gradients(modules, own)


def _gradients(modules: Any, own: Any) -> GRADIENTS:
    return {
        f"{stage}.{name}": parameter.grad
        for stage in own
        for name, parameter in modules[stage].named_parameters()
    }
