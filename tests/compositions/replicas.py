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
from tests.reference import WIDTH, assert_same, mse, reference
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

import fullbore as fb
from fullbore.runtime import P2PTransport, Pipeline, Stage
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
