"""Field cases C02-C05, C10, C20, C25 and C28: what a step and an evaluation do and refuse, on the
local engine and in processes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.pool import Pool
from tests.reference import WIDTH, assert_same, gradients, linear_tanh, mse
from torch import Tensor, nn

import fullbore as fb
from fullbore.errors import ExecutionError, ParameterError
from fullbore.runtime import LocalTransport, P2PTransport, Pipeline, Stage, Transport

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

EVERY = (
    *("gpipe", "1f1b", "looped_bfs", "interleaved_1f1b"),
    *("interleaved_zero_bubble", "zbv_zero_bubble", "dualpipev"),
)

Pools = Callable[[int], Pool]
Task = Callable[..., Any]


def everywhere(pool: Pools, task: Task, *args: Any) -> list[Any]:
    """``task(transport, ranks, *args)`` on the local engine, and on two processes over gloo."""
    return [task(LocalTransport(), (0, 1), *args), *pool(2).run(_on_gloo, task, args)]


def _on_gloo(rank: int, size: int, task: Task, args: tuple[Any, ...]) -> Any:
    transport = P2PTransport(timeout=20.0)
    try:
        return task(transport, (rank,), *args)
    finally:
        dist.barrier()
        transport.close()


def batch(rows: int = 8) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)


def pipeline(
    transport: Transport,
    ranks: tuple[int, ...],
    plan: fb.Schedule,
    modules: list[nn.Module],
    **options: Any,
) -> Pipeline:
    options.setdefault("loss_fn", mse)
    own = [s for rank in ranks for s in plan.placement.stages_of(rank)]
    stages = [Stage(modules[s], s, plan.num_stages) for s in own]
    return Pipeline(stages, plan, transport=transport, **options)


def outcome(call: Callable[[], object]) -> str:
    """What a call raises, as text."""
    try:
        call()
    except (ParameterError, ExecutionError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def misplaced(
    transport: Transport, ranks: tuple[int, ...], family: str, stages: list[tuple[int, ...]]
) -> str:
    plan = fb.build(family, num_ranks=2, num_microbatches=2)
    own = [Stage(nn.Linear(2, 2), s, 4) for rank in ranks for s in stages[rank]]
    return outcome(lambda: Pipeline(own, plan, transport=transport))


@pytest.mark.parametrize(
    ("family", "stages", "shape"),
    [
        ("zbv_zero_bubble", [(0, 2), (1, 3)], "vee"),
        ("interleaved_1f1b", [(0, 3), (1, 2)], "loop"),
    ],
)
def test_c02_stages_of_another_placement_are_refused_on_every_rank(
    pool: Pools, family: str, stages: list[tuple[int, ...]], shape: str
) -> None:
    for text in pool(2).run(_on_gloo, misplaced, (family, stages)):
        assert text.startswith("ParameterError: ")
        assert f"({shape} placement), got" in text
        assert "belongs to rank" in text


def evaluated(transport: Transport, ranks: tuple[int, ...], family: str) -> list[bool]:
    plan, (x, y) = fb.build(family, num_ranks=2, num_microbatches=4), batch()
    modules = linear_tanh(plan.num_stages)
    pipe = pipeline(transport, ranks, plan, modules)
    pipe.step(x, target=y)
    before = gradients(modules)
    pipe.eval(x, target=y)
    pipe.eval(x)
    pairs = zip(before, gradients(modules), strict=True)
    return [
        found[name] is wanted if wanted is None else torch.equal(wanted, found[name])  # type: ignore[arg-type]
        for old, found in pairs
        for name, wanted in old.items()
    ]


@pytest.mark.parametrize("family", ["gpipe", "interleaved_1f1b", "interleaved_zero_bubble"])
def test_c03_evaluation_leaves_gradients_alone(pool: Pools, family: str) -> None:
    for found in everywhere(pool, evaluated, family):
        assert found
        assert all(found)


def evaluations(transport: Transport, ranks: tuple[int, ...], family: str) -> list[Any]:
    plan, (x, y) = fb.build(family, num_ranks=2, num_microbatches=4), batch()
    pipe = pipeline(transport, ranks, plan, linear_tanh(plan.num_stages))
    early = [pipe.eval(x), pipe.eval(x, target=y)]
    pipe.step(x, target=y)
    outs = [*early, pipe.eval(x), pipe.eval(x, target=y)]
    return [(out.output, out.losses) for out in outs] if pipe.has_last else []


@pytest.mark.parametrize("family", ["zbv_zero_bubble", "dualpipev"])
def test_c04_evaluation_before_and_after_a_step_with_and_without_a_target(
    pool: Pools, family: str
) -> None:
    x, y = batch()
    output = nn.Sequential(*linear_tanh(4))(x)
    losses = [mse(o, t) for o, t in zip(output.tensor_split(4), y.tensor_split(4), strict=True)]
    found = [outs for outs in everywhere(pool, evaluations, family) if outs]
    assert len(found) == 2  # the local engine, and rank 0, which has both ends of the V
    for outs in found:
        for index, (out, own) in enumerate(outs):
            torch.testing.assert_close(out, output.detach())
            assert (own is None) is (index % 2 == 0)
            if own is not None:
                torch.testing.assert_close(torch.stack(own), torch.stack(losses).detach())


def doubled(transport: Transport, ranks: tuple[int, ...], family: str) -> list[Any]:
    plan, (x, y) = fb.build(family, num_ranks=2, num_microbatches=4), batch()
    modules = linear_tanh(plan.num_stages)
    pipe = pipeline(transport, ranks, plan, modules)
    pipe.step(x, target=y)
    once = gradients(modules)
    pipe.step(x, target=y)
    return [once, gradients(modules)]


@pytest.mark.parametrize("family", EVERY)
def test_c05_two_steps_give_twice_one_step(pool: Pools, family: str) -> None:
    for once, twice in everywhere(pool, doubled, family):
        present = 0
        for single, double in zip(once, twice, strict=True):
            for name, gradient in single.items():
                wanted = None if gradient is None else 2 * gradient
                assert_same(double[name], wanted, exact=False, what=name)
                present += gradient is not None
        assert present


class Counted(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.norm(self.linear(x))
        return out


def counted(transport: Transport, ranks: tuple[int, ...], family: str) -> tuple[Any, ...]:
    losses = 0

    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        nonlocal losses
        losses += 1
        return mse(output, target)

    plan, (x, y) = fb.build(family, num_ranks=2, num_microbatches=4), batch()
    modules = [Counted() for _ in range(plan.num_stages)]
    pipe = pipeline(transport, ranks, plan, list(modules), loss_fn=loss_fn)
    pipe.step(x, target=y)
    own = [s for rank in ranks for s in plan.placement.stages_of(rank)]
    seen = {int(modules[s].norm.num_batches_tracked or 0) for s in own}
    return {modules[s].calls for s in own}, seen, losses if pipe.has_last else None


@pytest.mark.parametrize("family", ["1f1b", "zbv_zero_bubble"])
def test_c10_modules_and_losses_run_once_a_microbatch(pool: Pools, family: str) -> None:
    for calls, batches, losses in everywhere(pool, counted, family):
        assert (calls, batches, losses in (4, None)) == ({4}, {4}, True)


def alive(transport: Transport, ranks: tuple[int, ...], options: dict[str, bool]) -> int:
    seen: list[weakref.ref[Tensor]] = []
    peak = 0

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            nonlocal peak
            output = super().forward(x)
            seen.append(weakref.ref(output))
            peak = max(peak, sum(ref() is not None for ref in seen))
            return output

    plan, (x, y) = fb.build("1f1b", num_ranks=2, num_microbatches=8), batch()
    modules: list[nn.Module] = [nn.Linear(WIDTH, WIDTH), Watched(WIDTH, WIDTH)]
    pipe = pipeline(transport, ranks, fb.lower(plan, **options), modules)
    pipe.step(x, target=y)
    assert len(seen) == 8 * pipe.has_last
    return peak


@pytest.mark.parametrize("options", [{}, {"batch": True}, {"sink": True}], ids=str)
def test_c20_at_most_two_last_outputs_are_alive(pool: Pools, options: dict[str, bool]) -> None:
    found = everywhere(pool, alive, options)
    assert 1 <= max(found) <= 2


def test_c25_the_schedule_says_which_rank_holds_the_loss() -> None:
    for family, rank in (("zbv_zero_bubble", 0), ("dualpipev", 0), ("1f1b", 3)):
        plan = fb.build(family, num_ranks=4, num_microbatches=8)
        assert plan.placement.rank_of(plan.num_stages - 1) == rank


def shared(transport: Transport, ranks: tuple[int, ...], family: str) -> list[Any]:
    plan, (x, y) = fb.build(family, num_ranks=2, num_microbatches=4), batch(7)
    pipe = pipeline(transport, ranks, plan, linear_tanh(plan.num_stages))
    outs = [
        pipe.step(x, target=y, share_loss=True),
        pipe.eval(x, target=y, share_loss=True),
        pipe.eval(x, share_loss=True),
        pipe.step(x, target=y),
    ]
    return [pipe.has_last, *((out.loss, out.losses, out.weights) for out in outs)]


@pytest.mark.parametrize("family", ["1f1b", "zbv_zero_bubble", "interleaved_1f1b"])
def test_c25_every_rank_can_have_the_loss(pool: Pools, family: str) -> None:
    engine, *ranks = everywhere(pool, shared, family)
    assert all(loss is not None for loss, _, _ in (engine[1], engine[2], engine[4]))
    for has_last, *outs in ranks:
        for wanted, found in zip(engine[1:4], outs[:3], strict=True):
            assert repr(found) == repr(wanted)
        assert (outs[3][0] is not None) is has_last


def vector(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square()


def not_a_number(output: Tensor, target: Tensor) -> Tensor:
    return mse(output, target) * float("nan")


def python_float(output: Tensor, target: Tensor) -> Any:
    return mse(output, target).item()


def stepped(transport: Transport, ranks: tuple[int, ...], family: str, loss_fn: Any) -> Any:
    """What the step raised, its losses, and whether the ranks' gradients are numbers."""
    plan, (x, y) = fb.build(family, num_ranks=2, num_microbatches=4), batch()
    modules = linear_tanh(plan.num_stages)
    pipe = pipeline(transport, ranks, plan, modules, loss_fn=loss_fn)
    losses: list[Any] = []
    text = outcome(lambda: losses.append(pipe.step(x, target=y).losses))
    parameters = [p.grad for module in modules for p in module.parameters()]
    return text, losses, [bool(p.isfinite().all()) for p in parameters if p is not None]


@pytest.mark.parametrize("family", ["1f1b", "zbv_zero_bubble"])
@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (vector, "loss_fn must return one number, got a tensor of shape"),
        (python_float, "loss_fn must return a tensor, got float"),
    ],
)
def test_c28_a_loss_that_is_no_scalar_tensor_is_an_error_on_every_rank(
    pool: Pools, family: str, loss_fn: Any, message: str
) -> None:
    found = everywhere(pool, stepped, family, loss_fn)
    assert [message in text for text, _, _ in found] == [True] * 3
    assert [losses for _, losses, _ in found] == [[], [], []]
    kinds = sorted(text.split(":")[0] for text, _, _ in found)
    assert kinds == ["ParameterError", "ParameterError", "PeerFailed"]


@pytest.mark.parametrize("family", ["1f1b", "zbv_zero_bubble"])
def test_c28_a_loss_that_is_not_a_number_passes_through(pool: Pools, family: str) -> None:
    for text, losses, finite in everywhere(pool, stepped, family, not_a_number):
        assert text == "nothing"
        assert losses[0] is None or all(loss.isnan() for loss in losses[0])
        assert finite
        assert not any(finite)
