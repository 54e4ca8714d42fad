"""Case C16: the same parameter in the first and the last stage, on one rank or on two."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from tests.pool import Pool
from tests.reference import WIDTH, apply, linear_tanh, local_pipeline, mse
from torch import Tensor, nn

import fullbore as fb
from fullbore.errors import ExecutionError, ParameterError
from fullbore.runtime import P2PTransport, Pipeline, Stage, Transport, clip_grad_norm_
from fullbore.runtime.launch import launch

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

FAMILIES = [name for name in fb.FAMILIES if name != "forward_only"]


def schedule_of(family: str, num_microbatches: int = 4) -> fb.Schedule:
    return fb.build(family, num_ranks=2, num_microbatches=num_microbatches)


def model(num_stages: int) -> list[nn.Module]:
    """The first and the last stage have one weight, under other names."""
    modules = linear_tanh(num_stages)
    last = nn.Sequential(nn.Tanh(), nn.Linear(WIDTH, WIDTH, bias=False))
    last[1].weight = modules[0][0].weight  # type: ignore[index]
    return [*modules[:-1], last]


def ties(num_stages: int) -> list[tuple[str, str]]:
    return [("0.0.weight", f"{num_stages - 1}.1.weight")]


def batches() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(8, WIDTH), torch.randn(8, WIDTH)) for _ in range(3)]


def train(parameters: list[nn.Parameter], step: Callable[[Tensor, Tensor], Any]) -> Any:
    """Three steps; the second adds to the gradients of the first."""
    found: list[list[Tensor]] = []
    for turn, (x, y) in enumerate(batches()):
        step(x, y)
        found.append([p.grad.clone() for p in parameters if p.grad is not None])
        if turn:
            with torch.no_grad():
                for p in parameters:
                    assert p.grad is not None
                    p.sub_(0.1 * p.grad)
                    p.grad = None
    return found


def unpipelined(num_stages: int) -> Any:
    modules = model(num_stages)

    def step(x: Tensor, y: Tensor) -> None:
        for a, b in zip(x.chunk(4), y.chunk(4), strict=True):
            (mse(apply(modules, a), b) / 4).backward()

    return modules, train([*nn.ModuleList(modules).parameters()], step)


def assert_close(found: Any, wanted: Any) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_c16_one_object_in_one_process(family: str):
    schedule = schedule_of(family)
    modules = model(schedule.num_stages)
    pipe = local_pipeline(modules, schedule)
    assert pipe.tied.names == ties(schedule.num_stages)
    found = train([*nn.ModuleList(modules).parameters()], lambda x, y: pipe.step(x, target=y))
    assert_close(found, unpipelined(schedule.num_stages)[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_c16_copies_in_one_process(family: str):
    schedule = schedule_of(family)
    modules = [deepcopy(module) for module in model(schedule.num_stages)]
    pipe = local_pipeline(modules, schedule, tied=ties(schedule.num_stages))
    found = train([*nn.ModuleList(modules).parameters()], lambda x, y: pipe.step(x, target=y))
    wanted = unpipelined(schedule.num_stages)[1]
    # The last parameter is the second copy.
    assert_close([step[:-1] for step in found], wanted)
    assert all(torch.equal(step[0], step[-1]) for step in found)


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(WIDTH, WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        return h @ self.weight.t()


def sparse_on_rank(rank: int, size: int) -> list[Tensor | None]:
    torch.manual_seed(0)
    embedding, head = nn.Embedding(WIDTH, WIDTH, sparse=True), Head()
    with torch.no_grad():
        head.weight.copy_(embedding.weight)
    tokens = torch.arange(8) % 5
    transport = P2PTransport(timeout=60.0)
    module = head if rank else embedding
    try:
        pipe = Pipeline(
            Stage(module, rank, 2),
            schedule_of("1f1b"),
            loss_fn=nn.functional.cross_entropy,
            transport=transport,
            tied=[("0.weight", "1.weight")],
        )
        pipe.step(tokens, target=tokens)
    finally:
        transport.close()
    found = next(module.parameters()).grad
    embedding.weight.grad = None
    for part in tokens.chunk(4):
        (nn.functional.cross_entropy(embedding(part) @ embedding.weight.t(), part) / 4).backward()
    return [found, embedding.weight.grad]


def test_c16_the_embedding_s_gradient_may_be_sparse(pool: Callable[[int], Pool]):
    (first, _), (second, reference) = pool(2).run(sparse_on_rank)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, reference.to_dense(), rtol=1e-5, atol=1e-6)


def run_rank(transport: Transport, rank: int, family: str) -> Any:
    schedule = schedule_of(family)
    own = schedule.placement.stages_of(rank)
    modules = model(schedule.num_stages)
    stages = [Stage(deepcopy(modules[s]), s, schedule.num_stages) for s in own]
    pipe = Pipeline(
        stages, schedule, loss_fn=mse, transport=transport, tied=ties(schedule.num_stages)
    )
    kept = nn.ModuleList([stage.module for stage in stages])
    found = train([*kept.parameters()], lambda x, y: pipe.step(x, target=y))
    x, y = batches()[0]
    pipe.step(x, target=y)
    norm = clip_grad_norm_(kept.parameters(), 1e-3, pipeline=pipe)
    names = [f"{s}.{n}" for s, m in zip(own, kept, strict=True) for n, _ in m.named_parameters()]
    return {"steps": [dict(zip(names, step, strict=True)) for step in found], "norm": norm}


def run_over_gloo(rank: int, size: int, family: str) -> Any:
    transport = P2PTransport(timeout=60.0)
    try:
        return run_rank(transport, rank, family)
    finally:
        transport.close()


def check(results: list[Any], family: str) -> None:
    num_stages = schedule_of(family).num_stages
    modules, wanted = unpipelined(num_stages)
    names = [f"{s}.{n}" for s, m in enumerate(modules) for n, _ in m.named_parameters()]
    (first, second), counted = ties(num_stages)[0], [*dict.fromkeys(names)]
    counted.remove(second)
    for turn, gradients in enumerate(wanted):
        expected = dict(zip(counted, gradients, strict=True))
        expected[second] = expected[first]
        found = {k: v for result in results for k, v in result["steps"][turn].items()}
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-6)
        # The copies stay equal only if their gradients are, bit for bit.
        assert torch.equal(found[first], found[second])
    x, y = batches()[0]
    for a, b in zip(x.chunk(4), y.chunk(4), strict=True):
        (mse(apply(modules, a), b) / 4).backward()
    gradients = [p.grad for p in nn.ModuleList(modules).parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    for result in results:
        torch.testing.assert_close(result["norm"], norm, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_c16_copies_on_two_ranks(pool: Callable[[int], Pool], family: str):
    check(pool(2).run(run_over_gloo, family), family)


def test_c16_copies_over_shared_memory():
    check(launch(run_rank, 2, transport="shm", args=("looped_bfs",)), "looped_bfs")


@pytest.mark.parametrize(
    ("tied", "message"),
    [
        ([("0.0.weight",)], "names two parameters or more"),
        (["0.0.weight"], "names two parameters or more"),
        ([("0.0.weight", "9.1.weight")], "named STAGE.NAME"),
        ([("0.0.weight", "weight")], "named STAGE.NAME"),
        ([("0.0.weight", "1.9.weight")], "stage 1 has no parameter '9.weight'"),
        ([("0.0.weight", "1.1.weight"), ("0.0.weight", "0.0.bias")], "is named twice"),
    ],
)
def test_c16_ties_that_make_no_sense(tied: Any, message: str):
    schedule = schedule_of("1f1b")
    with pytest.raises(ParameterError, match=message):
        local_pipeline(model(2), schedule, tied=tied)


def test_c16_copies_that_differ_are_an_error_and_keep_the_gradients():
    modules = [deepcopy(module) for module in model(2)]
    pipe = local_pipeline(modules, schedule_of("1f1b"), tied=ties(2))
    x, y = batches()[0]
    pipe.step(x, target=y)
    weight = modules[0].get_parameter("0.weight")
    assert weight.grad is not None
    before = weight.grad.clone()
    with torch.no_grad():
        weight.view(-1)[3] += 1e-7
    with pytest.raises(ParameterError, match=r"0\.0\.weight = 1\.1\.weight are not equal"):
        pipe.step(x, target=y)
    assert bool((weight.grad.abs() >= before.abs()).any())


def disagree(rank: int, size: int) -> str:
    transport = P2PTransport(timeout=10.0)
    modules = model(2)
    try:
        Pipeline(
            Stage(modules[rank], rank, 2),
            schedule_of("1f1b"),
            loss_fn=mse,
            transport=transport,
            tied=ties(2) if rank else [],
        )
    except (ParameterError, ExecutionError) as error:
        return str(error)
    finally:
        transport.close()
    return ""


def test_c16_ranks_must_tie_the_same(pool: Callable[[int], Pool]):
    messages = pool(2).run(disagree)
    assert all("tied parameters 0.0.weight = 1.1.weight" in text for text in messages), messages
