"""A plan exported as CSV runs under PyTorch's own runtime, and under fullbore's."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tests.pipelining.programs import batches, layers, mean_square
from tests.plan.exported import piped, trained
from tests.pool import Pool
from tests.reference import local_pipeline, reference

from fullbore.cli import main
from fullbore.formats import load
from fullbore.verify import accumulates_in_order

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

# torch divides the sum of the gradients by M, where the others weigh each loss: dividing by a power
# of two makes no difference.
MICROBATCHES = 8
RUNTIMES: dict[str, Callable[..., Any]] = {
    "torch": partial(trained, api="torch.distributed.pipelining"),
    "fullbore.pipelining": partial(trained, api="fullbore.pipelining"),
    "fullbore": piped,
}


@pytest.fixture(scope="module", params=[("loop", 1), ("loop", 2), ("vee", 2), ("loop", 3)])
def plan(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape, count = request.param
    path = tmp_path_factory.mktemp("plans") / f"{shape}{count}.csv"
    arguments = [
        *("plan", "--costs", "4,5,3,0.3", "-p", "2", "-m", str(MICROBATCHES)),
        *("-v", str(count), "--placement", shape, "--memory", "0.9x", "--effort", "1"),
        *("-o", str(path)),
    ]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    schedule = load(path)
    assert schedule.placement.num_stages == 2 * count
    assert schedule.placement.shape == (shape if count > 1 else "linear")
    return path


def check(path: Path, losses: list[torch.Tensor], gradients: dict[str, torch.Tensor]) -> None:
    """Against the unpipelined model: bit for bit where gradients are added up in order."""
    schedule = load(path)
    modules = layers(schedule.num_stages)
    x, y = batches(1, rows=2 * MICROBATCHES)[0]
    wanted = reference(
        modules,
        [(part,) for part in x.tensor_split(MICROBATCHES)],
        y.tensor_split(MICROBATCHES),
        weights=[1 / MICROBATCHES] * MICROBATCHES,
        loss_fn=mean_square,
    )
    for found, loss in zip(losses, wanted.losses, strict=True):
        torch.testing.assert_close(found, loss, rtol=0, atol=0)
    names = {f"{s}.{name}" for s, own in enumerate(wanted.gradients) for name in own}
    assert gradients.keys() == names
    exact = accumulates_in_order(schedule)
    for name, gradient in gradients.items():
        stage, _, own = name.partition(".")
        rtol, atol = (0.0, 0.0) if exact[int(stage)] else (1e-5, 1e-6)
        right = wanted.gradients[int(stage)][own]
        torch.testing.assert_close(gradient, right, rtol=rtol, atol=atol)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_two_processes(pool: Callable[[int], Pool], plan: Path, runtime: str):
    results = pool(2).run(RUNTIMES[runtime], str(plan))
    losses = next(losses for losses, _ in results if losses)
    gradients = {name: grad for _, own in results for name, grad in own.items()}
    check(plan, losses, gradients)


def test_all_ranks_in_one_process(plan: Path):
    schedule = load(plan)
    modules = layers(schedule.num_stages)
    x, y = batches(1, rows=2 * MICROBATCHES)[0]
    out = local_pipeline(modules, schedule, loss_fn=mean_square).step(x, target=y)
    gradients = {
        f"{stage}.{name}": parameter.grad
        for stage, module in enumerate(modules)
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    check(plan, list(out.losses or ()), gradients)
