"""Wrapped stages in a pipeline, compared with the same stages, wrapped alike, in a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from tests.compositions.replicas import (
    MICROBATCHES,
    Found,
    Wrap,
    batch,
    blocks,
    mesh,
    run_step,
    snapshot,
)
from tests.reference import apply, assert_same, mse
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import fullbore as fb
from fullbore.runtime import LocalTransport, P2PTransport, Pipeline, Stage
from fullbore.verify import accumulates_in_order


@dataclass(frozen=True)
class Variant:
    """Something to try in both: a pipeline of wrapped stages, and the same stages, wrapped alike,
    in a plain loop, where the wrappers do what they always do.

    Attributes:
        wrap: what is done to each stage.
        loop_wrap: what is done in the loop instead, where torch doesn't support it there.
        make: makes the stages.
        lowered: options to lower the schedule with beforehand.
        options: of the Pipeline.
        syncs: for each step, whether gradients are reduced, by the wrapper's own switch.
        together: what is done to all stages of a rank once they are wrapped.
        rate: the learning rate of an SGD step after each step; gradients are zeroed then.
    """

    family: str
    wrap: Wrap
    make: Callable[[int], list[nn.Module]] = blocks
    stages_per_rank: int | None = None
    microbatches: int = MICROBATCHES
    lowered: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    syncs: tuple[bool, ...] = (True,)
    rate: float = 0.0
    loop_wrap: Wrap | None = None
    together: Callable[[list[nn.Module]], None] | None = None

    def plan(self) -> fb.Schedule:
        plan = fb.build(
            self.family,
            num_ranks=2,
            num_microbatches=self.microbatches,
            stages_per_rank=self.stages_per_rank,
        )
        return plan if self.lowered is None else fb.lower(plan, **self.lowered)


Compared = dict[str, tuple[Found, Found]]


def run_variants(rank: int, size: int, variants: dict[str, Variant]) -> Compared:
    """For each variant what this rank's part of the pipeline found, and what a plain loop found."""
    del rank, size
    parts, results = mesh(), {}
    for name, variant in variants.items():
        results[name] = run_pipeline(variant, parts), run_loop(variant, parts)
    dist.barrier()
    return results


def run_hybrid(rank: int, size: int, variants: dict[str, Variant]) -> Compared:
    """The same for four replicas of a pipeline that has all its ranks in one process; parameters
    are spread over two replicas each."""
    del rank, size
    parts, results = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards")), {}
    for name, variant in variants.items():
        results[name] = run_pipeline(variant, parts), run_loop(variant, parts)
    dist.barrier()
    return results


def replica_of(parts: DeviceMesh) -> int:
    """Which batch this process has."""
    return parts.get_local_rank("dp") if "pp" in (parts.mesh_dim_names or ()) else dist.get_rank()


def run_pipeline(variant: Variant, parts: DeviceMesh) -> Found:
    plan = variant.plan()
    modules, own = variant.make(plan.num_stages), tuple(range(plan.num_stages))
    transport: LocalTransport | P2PTransport = LocalTransport()
    if "pp" in (parts.mesh_dim_names or ()):
        transport = P2PTransport(parts.get_group("pp"), timeout=60.0)
        own = plan.placement.stages_of(transport.ranks[0])
    wrapped = {s: variant.wrap(modules[s], parts) for s in own}
    if variant.together is not None:
        variant.together(list(wrapped.values()))
    stages = [Stage(module, s, plan.num_stages) for s, module in wrapped.items()]
    pipe = Pipeline(stages, plan, transport=transport, loss_fn=mse, **variant.options)
    found = Found(replica=replica_of(parts))
    for step, syncs in enumerate(variant.syncs):
        for module in wrapped.values():
            switch(module, syncs)
        run_step(pipe, wrapped, found, step)
        descend(wrapped, variant.rate)
    found.flags = {stage: flags(module) for stage, module in wrapped.items()}
    found.buffers = {stage: buffers(module) for stage, module in wrapped.items()}
    transport.close()
    return found


def run_loop(variant: Variant, parts: DeviceMesh) -> Found:
    """All stages on every rank, spread over the replicas."""
    plan = variant.plan()
    made = variant.make(plan.num_stages)
    wrap = variant.loop_wrap or variant.wrap
    modules = {s: wrap(module, parts) for s, module in enumerate(made)}
    if variant.together is not None:
        variant.together(list(modules.values()))
    found = Found(replica=replica_of(parts))
    for step, syncs in enumerate(variant.syncs):
        count = variant.microbatches
        x, y = (t.tensor_split(count) for t in batch(found.replica, step))
        losses = []
        for m in range(count):
            for module in modules.values():
                switch(module, syncs and m == count - 1)
            loss = mse(apply(modules.values(), x[m]), y[m])
            (loss / count).backward()
            losses.append(loss.detach())
        found.losses.append(losses)
        found.gradients.append(snapshot(modules))
        descend(modules, variant.rate)
    for module in modules.values():
        switch(module, variant.syncs[-1])
    found.flags = {stage: flags(module) for stage, module in modules.items()}
    found.buffers = {stage: buffers(module) for stage, module in modules.items()}
    return found


def fsdp_module() -> Any:
    from torch.distributed.fsdp import FSDPModule

    return FSDPModule


def switch(module: nn.Module, on: bool) -> None:
    """Have the wrappers reduce gradients in the next backward, or not."""
    for part in module.modules():
        if isinstance(part, DistributedDataParallel):
            part.require_backward_grad_sync = on
        elif isinstance(part, fsdp_module()):
            part.set_requires_gradient_sync(on)


def descend(modules: dict[int, nn.Module], rate: float) -> None:
    if not rate:
        return
    for module in modules.values():
        optimizer = torch.optim.SGD(module.parameters(), rate)
        optimizer.step()
        optimizer.zero_grad()


def buffers(module: nn.Module) -> dict[str, Tensor]:
    return {name.replace("module.", ""): b.clone() for name, b in module.named_buffers()}


def flags(module: nn.Module) -> list[tuple[Any, ...]]:
    """What the wrappers are set to, by their attributes."""
    found: list[tuple[Any, ...]] = []
    for part in module.modules():
        if isinstance(part, DistributedDataParallel):
            found.append((part.require_backward_grad_sync,))
        elif isinstance(part, fsdp_module()):
            state = part._get_fsdp_state()
            found.append((state._state_ctx.is_last_backward,))
            found += [
                (
                    g.reduce_grads,
                    g.all_reduce_grads,
                    g.reshard_after_backward,
                    g._reshard_after_forward,
                )
                for g in state._fsdp_param_groups
            ]
    return found


def compare(variant: Variant, results: Sequence[tuple[Found, Found]]) -> None:
    """Gradients after every step, losses and flags are those of the plain loop."""
    in_order = accumulates_in_order(variant.plan())
    for rank, (found, loop) in enumerate(results):
        for step, stages in enumerate(found.gradients):
            for stage, gradients in stages.items():
                assert gradients.keys() == loop.gradients[step][stage].keys()
                assert any(g is not None for g in gradients.values()) or not variant.syncs[step]
                for name, gradient in gradients.items():
                    assert_same(
                        gradient,
                        loop.gradients[step][stage][name],
                        exact=in_order[stage],
                        what=f"rank {rank} step {step} stage {stage} {name}",
                    )
        for a, b in zip(found.losses, loop.losses, strict=True):
            assert b is not None
            for m, loss in enumerate(a or ()):
                assert_same(loss, b[m], exact=all(in_order) or not variant.rate, what=f"loss {m}")
        for stage, set_to in found.flags.items():
            assert set_to == loop.flags[stage]
            # DDP gives all replicas those of the first.
            for name, buffer in results[0][1].buffers[stage].items():
                assert_same(found.buffers[stage][name], buffer, exact=True, what=name)
