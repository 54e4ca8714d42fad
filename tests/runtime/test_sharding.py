"""When parameters are gathered and gradients reduced, what is refused, and what happens when a
replica fails."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.compositions.replicas import blocks, mesh, whole_gradients
from tests.compositions.variants import flags
from tests.pool import Pool
from tests.reference import WIDTH, linear_tanh, mse
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import fullbore as fb
from fullbore.errors import ExecutionError, ParameterError
from fullbore.ir import Action, Kind
from fullbore.runtime import ActionContext, LocalTransport, P2PTransport, Pipeline, Stage
from fullbore.runtime.agreement import digest
from fullbore.runtime.sharding import lower_for
from fullbore.schedules import FAMILIES
from fullbore.verify import check

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

SHARDING = {Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE_GRAD}


class FSDPModule(nn.Module):
    """Known by its name."""


class FullyShardedDataParallel(nn.Module):
    """The same."""


class Held:
    """Like a stage."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_with_and_without_sharding_agree(family: str, num_ranks: int) -> None:
    """Messages and their order are the same, whatever else a rank has to do."""
    plan = fb.build(family, num_ranks=num_ranks, num_microbatches=2 * num_ranks + 1)
    plain = fb.lower(plan)
    for options in ({}, {"max_active_stages": 1}, {"max_active_stages": 2, "lookahead": 1}):
        sharded = lower_for([Held(FSDPModule())], plan, **options)
        check(sharded)
        assert digest(sharded) == digest(plain)
        for found, wanted in zip(sharded.programs, plain.programs, strict=True):
            assert tuple(a for a in found if a.kind not in SHARDING) == wanted
        for stage in range(plan.num_stages):
            kinds = [a.kind for _, _, a in sharded.actions() if a.stage == stage]
            assert kinds.count(Kind.UNSHARD) == kinds.count(Kind.RESHARD) > 0
            assert kinds.count(Kind.REDUCE_GRAD) == (not plan.forward_only)
    assert lower_for([Held(nn.Linear(1, 1))], plan) == plain


def test_fsdp1_is_refused_whenever_it_comes() -> None:
    plan = fb.build("1f1b", num_ranks=2, num_microbatches=2)
    wrapped = nn.Sequential(FullyShardedDataParallel())
    with pytest.raises(ParameterError, match=r"stage 0: FullyShardedDataParallel .* fully_shard"):
        Stage(wrapped, 0, 2)
    stages = [Stage(module, i, 2) for i, module in enumerate(linear_tanh(2))]
    stages[1].module = wrapped
    with pytest.raises(ParameterError, match="stage 1: FullyShardedDataParallel"):
        Pipeline(stages, plan, transport=LocalTransport())
    modules = linear_tanh(2)
    stages = [Stage(module, i, 2) for i, module in enumerate(modules)]
    pipe = Pipeline(stages, plan, transport=LocalTransport(), loss_fn=mse)
    x, y = torch.randn(4, WIDTH), torch.randn(4, WIDTH)
    pipe.step(x, target=y)
    modules[1].add_module("more", FullyShardedDataParallel())
    with pytest.raises(ParameterError, match="stage 1: FullyShardedDataParallel"):
        pipe.step(x, target=y)


def refusals(rank: int, size: int) -> dict[str, str]:
    from torch.distributed._composable.replicate import replicate
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.distributed.fsdp import fully_shard

    del rank, size
    made = {name: DistributedDataParallel(nn.Linear(WIDTH, WIDTH)) for name in ("hook", "built in")}
    made["hook"].register_comm_hook(None, default_hooks.fp16_compress_hook)
    built_in = dist.BuiltinCommHookType.FP16_COMPRESS  # type: ignore[attr-defined]
    made["built in"]._register_builtin_comm_hook(built_in)
    inner = nn.Linear(WIDTH, WIDTH)
    late = nn.Sequential(inner, nn.Linear(WIDTH, WIDTH))
    modules: dict[str, nn.Module] = {
        **made,
        "delayed": DistributedDataParallel(
            late,
            delay_all_reduce_named_params=[("0.weight", inner.weight)],
            param_to_hook_all_reduce=late[1].weight,
        ),
        "nested": DistributedDataParallel(
            nn.Sequential(DistributedDataParallel(nn.Linear(WIDTH, WIDTH)))
        ),
        "replicate": replicate(nn.Linear(WIDTH, WIDTH)),
    }
    sharded = nn.Sequential(DistributedDataParallel(nn.Linear(WIDTH, WIDTH)))
    fully_shard(sharded)
    modules["both"] = sharded
    found = {}
    for name, module in modules.items():
        try:
            Stage(module, 0, 1)
        except ParameterError as error:
            found[name] = str(error)
    return found | {"join": under_join(), "shared": shared_module()}


def shared_module() -> str:
    from torch.distributed.fsdp import fully_shard

    modules = [nn.Sequential(nn.Linear(WIDTH, WIDTH)) for _ in range(2)]
    fully_shard(modules[0])
    modules[1].append(modules[0][0])
    stages = [Stage(module, s, 2) for s, module in enumerate(modules)]
    plan = fb.build("1f1b", num_ranks=2, num_microbatches=2)
    with pytest.raises(ParameterError) as refused:
        Pipeline(stages, plan, transport=LocalTransport())
    return str(refused.value)


def under_join() -> str:
    from torch.distributed.algorithms.join import Join

    module = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    plan = fb.build("gpipe", num_ranks=1, num_microbatches=2)
    pipe = Pipeline(Stage(module, 0, 1), plan, transport=LocalTransport(), loss_fn=mse)
    x = torch.randn(4, WIDTH)
    with Join([module]):
        try:
            pipe.step(x, target=x)
        except ParameterError as error:
            # Else join() waits for the others, who have stopped too.
            Join.notify_join_context(module)
            return str(error)
    return ""


def test_what_ddp_and_its_kin_are_refused_for(pool: Callable[[int], Pool]) -> None:
    for found in pool(2).run(refusals):
        assert "communication hook works on buckets" in found["hook"]
        assert "communication hook works on buckets" in found["built in"]
        assert "delay_all_reduce_named_params" in found["delayed"]
        assert "averaged twice" in found["nested"]
        assert "averaged twice" in found["both"]
        assert "replicate() reduces gradients in every backward" in found["replicate"]
        assert "stage 0 shares a module that fully_shard manages" in found["shared"]
        assert "join() counts every forward as a step" in found["join"]


class Counting:
    """Gathers as torch does, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        self.count += 1
        work = dist.all_gather_single(output_tensor, input_tensor, group, async_op)
        assert work is None or isinstance(work, dist.Work)
        return work


def sharded_blocks(num_stages: int, gathering: Counting) -> list[nn.Module]:
    """Every block by itself, to be freed after every forward."""
    from torch.distributed.fsdp import FSDPModule, fully_shard

    replicas = init_device_mesh("cpu", (dist.get_world_size(),))
    modules = blocks(num_stages)
    for module in modules:
        for part in (*module.children(), module):
            fully_shard(part, mesh=replicas, reshard_after_forward=True)
            assert isinstance(part, FSDPModule)
            part.set_custom_all_gather(gathering)  # type: ignore[arg-type] # torch doesn't export the type
    return modules


def whole(modules: list[nn.Module]) -> list[Tensor | None]:
    """All gradients; nothing is left of them."""
    found = [gradient for module in modules for gradient in whole_gradients(module).values()]
    for module in modules:
        module.zero_grad()
    return found


def counted(rank: int, size: int) -> dict[str, Any]:
    """How often parameters were gathered, and by whom gradients were reduced."""
    del size
    gathering = Counting()
    modules = sharded_blocks(4, gathering)
    plan = fb.build("interleaved_zero_bubble", num_ranks=2, num_microbatches=4, stages_per_rank=2)
    stages = [Stage(module, s, 4) for s, module in enumerate(modules)]
    pipe = Pipeline(stages, plan, transport=LocalTransport(), loss_fn=mse, max_active_stages=1)
    torch.manual_seed(rank)
    x, y = torch.randn(8, WIDTH), torch.randn(8, WIDTH)
    pipe.step(x, target=y)
    unshards = [a for _, _, a in pipe.schedule.actions() if a.kind is Kind.UNSHARD]
    # Three parts a stage; the root has no parameters of its own.
    result: dict[str, Any] = {"gathers": gathering.count, "wanted": 3 * len(unshards)}
    first, seen = whole(modules), set()

    def note(action: Action, context: ActionContext) -> None:
        seen.add(action.kind.name)
        context.run()

    for kind in ("UNSHARD", "RESHARD", "REDUCE_GRAD"):
        pipe.register_custom_function(kind, note)
    pipe.step(x, target=y)
    result["seen"] = seen
    pairs = zip(whole(modules), first, strict=True)
    result["same"] = all(a is not None and b is not None and torch.equal(a, b) for a, b in pairs)
    # Whoever takes the reduction over has to do it.
    with pytest.warns(UserWarning, match="replaced"):
        pipe.register_custom_function("REDUCE_GRAD", lambda action, context: None)
    pipe.step(x, target=y)
    result["left"] = all(gradient is None for gradient in whole(modules))
    return result


def test_parameters_are_gathered_when_the_schedule_says_so(pool: Callable[[int], Pool]) -> None:
    for found in pool(2).run(counted):
        assert found["gathers"] == found["wanted"]
        assert found["same"]
        assert found["seen"] == {"UNSHARD", "RESHARD", "REDUCE_GRAD"}
        assert found["left"]


@dataclass
class Outcome:
    """What a step raised, after how many seconds, what the next one said, and how the wrapper is
    set after that."""

    kind: str = ""
    text: str = ""
    seconds: float = 0.0
    again: str = ""
    settings: list[bool] = field(default_factory=list)


WRAPPERS = ("DDP", "FSDP2")


def fails(rank: int, size: int) -> dict[str, Outcome]:
    del size
    parts = mesh()
    return {wrapper: fail_once(rank, parts, wrapper) for wrapper in WRAPPERS}


def fail_once(rank: int, parts: DeviceMesh, wrapper: str) -> Outcome:
    replicas = dist.new_group(
        [rank % 2, rank % 2 + 2], timeout=timedelta(seconds=20), use_local_synchronization=True
    )
    plan = fb.build("1f1b", num_ranks=2, num_microbatches=4)
    module = wrapped(linear_tanh(2)[rank % 2], replicas, wrapper)
    transport = P2PTransport(parts.get_group("pp"), timeout=30.0)
    pipe = Pipeline(Stage(module, rank % 2, 2), plan, transport=transport, loss_fn=mse)
    x = torch.randn(8, WIDTH)
    pipe.step(x, target=x)
    dist.barrier()

    def fail(action: Action, context: ActionContext) -> None:
        context.run()
        if action.microbatch == 3:
            time.sleep(0.5)
            raise ValueError("no more")

    if rank == 3:
        pipe.register_custom_function("B", fail)
    outcome, start = Outcome(), time.monotonic()
    try:
        pipe.step(x, target=x)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        outcome.kind, outcome.text = type(error).__name__, str(error)
    outcome.seconds = time.monotonic() - start
    try:
        pipe.step(x, target=x)
    except ExecutionError as error:
        outcome.again = str(error)
    dist.barrier()  # or a late refusal would reach the next pipeline
    outcome.settings = [value for part in flags(module) for value in part]
    transport.close()
    return outcome


def wrapped(module: nn.Module, replicas: dist.ProcessGroup, wrapper: str) -> nn.Module:
    if wrapper == "DDP":
        return DistributedDataParallel(module, process_group=replicas)
    from torch.distributed.fsdp import fully_shard

    fully_shard(module, mesh=DeviceMesh.from_group(replicas, "cpu"))
    return module


@pytest.fixture(scope="module")
def failures(pool: Callable[[int], Pool]) -> list[dict[str, Outcome]]:
    return pool(4).run(fails)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_replicas_hear_of_a_failure(failures: list[dict[str, Outcome]], wrapper: str) -> None:
    """The last rank of the second replica fails in its last backward. The rank before it waits for
    its message; those of the first replica wait for averages that never come."""
    for rank, outcomes in enumerate(failures):
        outcome = outcomes[wrapper]
        assert outcome.kind == ("ValueError" if rank == 3 else "PeerFailed"), (rank, outcome)
        assert "no more" in outcome.text
        assert outcome.seconds < 5
        assert "start all replicas again" in outcome.again, (rank, outcome)
        # As before the first step; a root of FSDP2 is not freed after its forward.
        wanted = [True] if wrapper == "DDP" else [True, True, True, True, False]
        assert outcome.settings == wanted


def goes_on(rank: int, size: int) -> list[str]:
    """Rank 0, whose stage is plain, fails once."""
    del size
    module = linear_tanh(2)[rank]
    if rank == 1:
        alone = dist.new_group([rank], use_local_synchronization=True)
        module = DistributedDataParallel(module, process_group=alone)
    else:
        dist.new_group([rank], use_local_synchronization=True)
    plan = fb.build("1f1b", num_ranks=2, num_microbatches=2)
    transport = P2PTransport(timeout=30.0)
    pipe = Pipeline(Stage(module, rank, 2), plan, transport=transport, loss_fn=mse)
    x = torch.randn(4, WIDTH)
    said: list[str] = []

    def fail_once(action: Action, context: ActionContext) -> None:
        if rank == 0 and not said:
            raise ValueError("this once")
        context.run()

    pipe.register_custom_function("F", fail_once)
    for _ in range(2):
        try:
            pipe.step(x, target=x)
        except (ValueError, ExecutionError) as error:
            said.append(str(error))
        dist.barrier()
    transport.close()
    return said


def test_a_rank_that_could_go_on_hears_that_another_cannot(pool: Callable[[int], Pool]) -> None:
    first, second = pool(2).run(goes_on)
    assert "this once" in first[0]
    assert "this once" in second[0]
    assert "cannot be used any more: a step failed (PeerFailed" in second[1]
    assert "cannot be used any more: a step failed (PeerFailed" in first[1]
    assert all("this once" in text for text in (*first, *second))


def run_page(rank: int, size: int, program: str) -> int:
    del rank, size
    names: dict[str, Any] = {}
    exec(program, names)
    return sum(p.grad is not None for stage in names["stages"] for p in stage.module.parameters())


def test_the_page_shows_a_program_that_runs(pool: Callable[[int], Pool]) -> None:
    page = Path(__file__).parents[2] / "docs" / "data_parallel.md"
    (program,) = re.findall(
        r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    started = [line for line in program.splitlines() if "init_process_group" not in line]
    # Two stages a rank, of three layers with two parameters each.
    assert pool(4).run(run_page, "\n".join(started)) == [12] * 4
