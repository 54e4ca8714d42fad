"""Several things at once, on two replicas of two ranks: DDP or FSDP2, a tied weight on different
ranks, clipping, loss scaling with an overflow, and a checkpoint that one process loads."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.compositions.harness import COUNT, LAYERS, Part, linears, plan
from tests.pool import Pool
from tests.reference import WIDTH, mse
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

import fullbore as fb
from fullbore.runtime import (
    GradScaler,
    LocalTransport,
    P2PTransport,
    Pipeline,
    Stage,
    clip_grad_norm_,
    load_checkpoint,
    save_checkpoint,
)

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

FAMILIES = ("1f1b", "zbv_zero_bubble")
STEPS, OVERFLOW, REPLICAS = 4, 1, 2
TIED = ("layers.0.0.weight", "layers.3.0.weight")


def layers() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    made = linears()
    made[-1][0].weight = made[0][0].weight  # type: ignore[index]
    return {str(i): layer for i, layer in enumerate(made)}


def batch(step: int, replica: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(10 * step + replica)
    return torch.randn(2 * COUNT, WIDTH), torch.randn(2 * COUNT, WIDTH)


def parts(family: str, stages: Any) -> dict[int, Part]:
    made = layers()
    share = LAYERS // plan(family).num_stages
    return {
        s: Part({str(i): made[str(i)] for i in range(s * share, (s + 1) * share)}) for s in stages
    }


def overflow(gradient: Any) -> None:
    local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    local.view(-1)[0] = inf


def on_rank(rank: int, size: int, family: str, wrapper: str, path: Path) -> Any:
    mesh = init_device_mesh("cpu", (REPLICAS, 2), mesh_dim_names=("dp", "pp"))
    replica, place = mesh.get_coordinate() or (0, 0)
    schedule = plan(family)
    own = parts(family, schedule.placement.stages_of(place))
    stages = []
    for s, part in own.items():
        group = mesh.get_group("dp")
        module: nn.Module = part
        if wrapper == "ddp":
            module = DistributedDataParallel(part, process_group=group)
        else:
            fully_shard(part, mesh=mesh["dp"])
        stages.append(Stage(module, s, schedule.num_stages))
    ends = (0, schedule.num_stages - 1)
    tied = [tuple(f"{s}.{name}" for s, name in zip(ends, TIED, strict=True))]
    transport = P2PTransport(mesh.get_group("pp"), timeout=60.0)
    pipe = Pipeline(stages, schedule, loss_fn=mse, transport=transport, tied=tied)
    parameters = [*nn.ModuleList(stage.module for stage in stages).parameters()]
    optimizer = SGD(parameters, lr=1.0, momentum=0.9)
    scaler = GradScaler("cpu", 2.0**8, pipeline=pipe)
    found: dict[str, Any] = {"norms": [], "scales": []}
    for step in range(STEPS):
        x, y = batch(step, replica)
        pipe.step(x, target=y, loss_scale=scaler.get_scale())
        # A part of a sharded gradient is one replica's alone.
        if step == OVERFLOW and pipe.has_first and (wrapper == "ddp" or replica == 1):
            overflow(parameters[0].grad)
        scaler.unscale_(optimizer)
        found["norms"].append(clip_grad_norm_(parameters, 0.01, pipeline=pipe))
        scaler.step(optimizer)
        scaler.update()
        found["scales"].append(scaler.get_scale())
        optimizer.zero_grad()
    save_checkpoint(pipe, path, optimizers=optimizer, extra=scaler.state_dict())
    transport.close()
    return found


def reference() -> tuple[Part, Any, dict[str, Any]]:
    model = Part(layers())
    optimizer = SGD(model.parameters(), lr=1.0, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", 2.0**8)
    found: dict[str, Any] = {"norms": [], "scales": []}
    for step in range(STEPS):
        for replica in range(REPLICAS):
            x, y = batch(step, replica)
            for a, b in zip(x.chunk(COUNT), y.chunk(COUNT), strict=True):
                scaler.scale(mse(model(a), b) / (COUNT * REPLICAS)).backward()
        if step == OVERFLOW:
            overflow(next(model.parameters()).grad)
        scaler.unscale_(optimizer)
        found["norms"].append(nn.utils.clip_grad_norm_(model.parameters(), 0.01))
        scaler.step(optimizer)
        scaler.update()
        found["scales"].append(scaler.get_scale())
        optimizer.zero_grad()
    return model, optimizer, found


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp2"])
@pytest.mark.parametrize("family", FAMILIES)
def test_all_of_it_together(pool: Callable[[int], Pool], family: str, wrapper: str, tmp_path: Path):
    results = pool(4).run(on_rank, family, wrapper, tmp_path / "end")
    model, optimizer, wanted = reference()
    for found in results:
        assert found["scales"] == wanted["scales"]
        for norm, expected in zip(found["norms"], wanted["norms"], strict=True):
            torch.testing.assert_close(norm, expected, rtol=1e-4, atol=1e-6, equal_nan=True)
    alone = fb.build("gpipe", num_ranks=1, num_microbatches=COUNT)
    whole = Part({str(i): layer for i, layer in enumerate(linears())})
    pipe = Pipeline(Stage(whole, 0, 1), alone, loss_fn=mse, transport=LocalTransport())
    loaded = SGD(whole.parameters(), lr=0.0, momentum=0.9)
    extra = load_checkpoint(pipe, tmp_path / "end", optimizers=loaded)
    assert extra["scale"] == wanted["scales"][-1]
    expected_weights = model.state_dict()
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(value, expected_weights[name], rtol=1e-5, atol=1e-6)
    assert torch.equal(*(whole.get_parameter(name) for name in TIED))
    names = {p: name for name, p in model.named_parameters(remove_duplicate=False)}
    for name, parameter in whole.named_parameters():
        state = {names[p]: s for p, s in optimizer.state.items()}
        momentum = state[TIED[1] if name in TIED else name]["momentum_buffer"]
        found = loaded.state[parameter]["momentum_buffer"]
        torch.testing.assert_close(found, momentum, rtol=1e-4, atol=1e-7)
