"""Two replicas of a pipeline of two ranks, in four processes: what the tests of DDP and FSDP2 run,
and what they compare it with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from tests.reference import WIDTH, apply, assert_same, mse, reference
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import fullbore as fb
from fullbore.runtime import LocalTransport, P2PTransport, Pipeline, Stage
from fullbore.verify import accumulates_in_order

FAMILIES = (
    "gpipe",
    "1f1b",
    "looped_bfs",
    "interleaved_1f1b",
    "interleaved_zero_bubble",
    "zbv_zero_bubble",
    "dualpipev",
)
MICROBATCHES = 4
ROWS = 8

Wrap = Callable[[nn.Module, DeviceMesh], nn.Module]
Gradients = dict[str, Tensor | None]


class Block(nn.Module):
    """Sums gradients of several kinds of parameter; its sizes do not divide evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, WIDTH + 3)
        self.down = nn.Linear(WIDTH + 3, WIDTH, bias=False)
        self.shift = nn.Parameter(torch.randn(WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + self.down(self.up(self.norm(h)).tanh()) * self.shift
        return out


def blocks(num_stages: int, *, seed: int = 0) -> list[nn.Module]:
    """Two blocks and a linear layer a stage."""
    torch.manual_seed(seed)
    return [nn.Sequential(Block(), Block(), nn.Linear(WIDTH, WIDTH)) for _ in range(num_stages)]


def batch(replica: int, step: int = 0) -> tuple[Tensor, Tensor]:
    """Each replica has its own data."""
    torch.manual_seed(100 + 10 * step + replica)
    return torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)


@cache
def schedule(family: str) -> fb.Schedule:
    return fb.build(family, num_ranks=2, num_microbatches=MICROBATCHES)


def mesh() -> DeviceMesh:
    """Replicas x pipeline: pipelines are (0, 1) and (2, 3), replicas (0, 2) and (1, 3)."""
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))


@dataclass
class Found:
    """What one rank has after each step: gradients by stage, and losses."""

    gradients: list[dict[int, Gradients]] = field(default_factory=list)
    losses: list[Sequence[Tensor] | None] = field(default_factory=list)
    replica: int = 0
    flags: dict[int, Any] = field(default_factory=dict)
    buffers: dict[int, dict[str, Tensor]] = field(default_factory=dict)


def run_step(pipe: Pipeline, modules: dict[int, nn.Module], found: Found, step: int = 0) -> None:
    """One evaluation, which must change nothing, and one step."""
    x, y = batch(found.replica, step)
    before = snapshot(modules)
    evaluated = pipe.eval(x, target=y)
    for stage, gradients in snapshot(modules).items():
        for name, gradient in gradients.items():
            assert_same(gradient, before[stage][name], exact=True, what=f"{name} after eval()")
    out = pipe.step(x, target=y)
    # Evaluation doesn't normalize by the microbatch.
    has_norm = any(isinstance(m, nn.BatchNorm1d) for s in modules.values() for m in s.modules())
    if out.losses is not None and not has_norm:
        assert evaluated.losses is not None
        assert all(map(torch.equal, evaluated.losses, out.losses))
    found.losses.append(out.losses)
    found.gradients.append(snapshot(modules))


def snapshot(modules: dict[int, nn.Module]) -> dict[int, Gradients]:
    """Whole gradients, by stage and by the plain module's names. All replicas call it together."""
    return {stage: whole_gradients(module) for stage, module in modules.items()}


def whole_gradients(module: nn.Module) -> Gradients:
    found: Gradients = {}
    for name, parameter in module.named_parameters():
        gradient = parameter.grad
        whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        found[name.replace("module.", "")] = None if whole is None else whole.clone()
    return found


def run_families(
    rank: int,
    size: int,
    wrap: Wrap,
    families: Sequence[str] = FAMILIES,
    make: Callable[[int], list[nn.Module]] = blocks,
    lowered: dict[str, Any] | None = None,
    steps: int = 2,
) -> dict[str, Found]:
    """Every family, one after another, two steps each without zeroing gradients in between."""
    del rank, size
    parts, results = mesh(), {}
    for family in families:
        plan, modules = schedule(family), make(schedule(family).num_stages)
        if lowered is not None:
            plan = fb.lower(plan, **lowered)
        transport = P2PTransport(parts.get_group("pp"), timeout=60.0)
        own = plan.placement.stages_of(transport.ranks[0])
        wrapped = {s: wrap(modules[s], parts) for s in own}
        stages = [Stage(module, s, plan.num_stages) for s, module in wrapped.items()]
        pipe = Pipeline(stages, plan, transport=transport, loss_fn=mse)
        found = Found(replica=parts.get_local_rank("dp"))
        for step in range(steps):
            run_step(pipe, wrapped, found, step)
        transport.close()
        results[family] = found
    dist.barrier()
    return results


@contextmanager
def one_thread() -> Iterator[None]:
    """As in the ranks: sums over rows depend on the number of threads."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


def wanted(
    family: str,
    make: Callable[[int], list[nn.Module]] = blocks,
    step: int = 0,
) -> tuple[list[Gradients], list[list[Tensor]]]:
    """The unpipelined model's gradients, averaged over the replicas, and each replica's losses."""
    modules, plan = make(schedule(family).num_stages), schedule(family)
    count = plan.num_microbatches
    parts = []
    with one_thread():
        for replica in range(2):
            x, y = (t.tensor_split(count) for t in batch(replica, step))
            weights = [1 / count] * count
            parts.append(reference(modules, [(part,) for part in x], y, weights=weights))
    means: list[Gradients] = []
    for one, other in zip(parts[0].gradients, parts[1].gradients, strict=True):
        means.append({name: _mean(one[name], other[name]) for name in one})
    return means, [part.losses for part in parts]


def _mean(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        assert one is other
        return None
    return (one + other) / 2


def check(
    family: str,
    results: Sequence[Found],
    make: Callable[[int], list[nn.Module]] = blocks,
    *,
    exact: bool = True,
) -> None:
    """All ranks' gradients after one step and after two, and the losses."""
    plan = schedule(family)
    in_order = accumulates_in_order(plan)
    first, losses = wanted(family, make)
    second, _ = wanted(family, make, step=1)
    seen = set()
    for rank, found in enumerate(results):
        for stage, gradients in found.gradients[0].items():
            seen.add((found.replica, stage))
            assert gradients.keys() == first[stage].keys()
            for name, gradient in gradients.items():
                what = f"{family}: rank {rank} stage {stage} {name}"
                assert_same(
                    gradient, first[stage][name], exact=exact and in_order[stage], what=what
                )
                both = _sum(first[stage][name], second[stage][name])
                again = found.gradients[1][stage][name]
                assert_same(again, both, exact=False, what=f"{what} after two steps")
        if found.losses[0] is not None:
            for m, (a, b) in enumerate(zip(found.losses[0], losses[found.replica], strict=True)):
                assert_same(a, b, exact=exact, what=f"{family}: loss {m}")
    assert seen == {(replica, stage) for replica in range(2) for stage in range(plan.num_stages)}


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return one if other is None else other if one is None else one + other


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
