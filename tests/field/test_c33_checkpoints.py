"""Case C33: what is saved on two ranks is loaded on four, and into another family."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.pool import Pool
from tests.reference import WIDTH, assert_same, mse
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.optim import SGD, AdamW, Optimizer

import fullbore as fb
from fullbore.errors import ExecutionError, ParameterError
from fullbore.runtime import (
    LocalTransport,
    P2PTransport,
    Pipeline,
    Stage,
    Transport,
    load_checkpoint,
    save_checkpoint,
)
from fullbore.runtime.launch import launch

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

LAYERS = 8


class Layers(nn.Module):
    """Some layers of the model, under the names that they have in the whole."""

    def __init__(self, layers: range, *, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        made = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
        self.layers = nn.ModuleDict({str(i): made[i] for i in layers})

    def forward(self, h: Tensor) -> Tensor:
        for layer in self.layers.values():
            h = layer(h)
        return h


def pipeline(
    family: str, num_ranks: int, transport: Transport, rank: int | None = None, *, seed: int = 0
) -> tuple[Pipeline, list[Optimizer]]:
    """All stages, or those of one rank, and an optimizer for each."""
    plan = fb.build(family, num_ranks=num_ranks, num_microbatches=4)
    share = LAYERS // plan.num_stages
    own = range(plan.num_stages) if rank is None else plan.placement.stages_of(rank)
    modules = {s: Layers(range(s * share, (s + 1) * share), seed=seed) for s in own}
    stages = [Stage(module, s, plan.num_stages) for s, module in modules.items()]
    optimizers: list[Optimizer] = [
        AdamW([{"params": [*m.parameters()], "lr": 0.02}], lr=0.1) for m in modules.values()
    ]
    return Pipeline(stages, plan, loss_fn=mse, transport=transport), optimizers


def train(pipe: Pipeline, optimizers: list[Optimizer], steps: range) -> None:
    for step in steps:
        torch.manual_seed(step)
        x = torch.randn(8, WIDTH)
        pipe.step(x, target=x.cos())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def weights(pipe: Pipeline) -> dict[str, Tensor]:
    parts = [stage.module.state_dict() for stage in pipe.stages.values()]
    return {name: value for part in parts for name, value in part.items()}


def unsplit(steps: int) -> dict[str, Tensor]:
    model = Layers(range(LAYERS), seed=0)
    optimizer = AdamW(model.parameters(), lr=0.02)
    for step in range(steps):
        torch.manual_seed(step)
        for part in torch.randn(8, WIDTH).chunk(4):
            (mse(model(part), part.cos()) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def save_on_rank(transport: Transport, rank: int, path: Path, family: str) -> None:
    pipe, optimizers = pipeline(family, 2, transport, rank)
    train(pipe, optimizers, range(2))
    save_checkpoint(pipe, path, optimizers=optimizers, extra={"step": 2, "family": family})


def load_on_rank(transport: Transport, rank: int, path: Path, family: str, size: int) -> Any:
    pipe, optimizers = pipeline(family, size, transport, rank, seed=9)
    extra = load_checkpoint(pipe, path, optimizers=optimizers)
    train(pipe, optimizers, range(extra["step"], 4))
    return weights(pipe)


def over_gloo(rank: int, size: int, function: Callable[..., Any], *args: Any) -> Any:
    transport = P2PTransport(timeout=60.0)
    try:
        return function(transport, rank, *args)
    finally:
        transport.close()


def check(found: dict[str, Tensor], *, exact: bool) -> None:
    """Two steps, the checkpoint and two more equal four steps without one."""
    wanted = unsplit(4)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if exact:
            assert torch.equal(found[name], value), name
        # AdamW divides float noise by the size of the gradient.
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    pipe, optimizers = pipeline("1f1b", 2, LocalTransport())
    train(pipe, optimizers, range(2))
    save_checkpoint(pipe, tmp_path / "step2", optimizers=optimizers, extra={"step": 2})
    return tmp_path / "step2"


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("family", [name for name in fb.FAMILIES if name != "forward_only"])
def test_c33_another_family_on_another_number_of_ranks(saved: Path, family: str, num_ranks: int):
    pipe, optimizers = pipeline(family, num_ranks, LocalTransport(), seed=9)
    extra = load_checkpoint(pipe, saved, optimizers=optimizers)
    train(pipe, optimizers, range(extra["step"], 4))
    check(weights(pipe), exact=family not in ("looped_bfs", "dora"))


def test_c33_saved_on_two_processes_and_loaded_on_four(pool: Callable[[int], Pool], tmp_path: Path):
    path = tmp_path / "step2"
    pool(2).run(over_gloo, save_on_rank, path, "interleaved_zero_bubble")
    parts = pool(4).run(over_gloo, load_on_rank, path, "zbv_zero_bubble", 4)
    check({name: value for part in parts for name, value in part.items()}, exact=True)


def test_c33_saved_by_processes_without_a_process_group(tmp_path: Path):
    path = tmp_path / "step2"
    launch(save_on_rank, 2, transport="shm", args=(path, "1f1b"))
    pipe, optimizers = pipeline("dualpipev", 2, LocalTransport(), seed=9)
    assert load_checkpoint(pipe, path, optimizers=optimizers) == {"step": 2, "family": "1f1b"}
    train(pipe, optimizers, range(2, 4))
    check(weights(pipe), exact=True)


def test_c33_torch_reads_the_unsplit_model(saved: Path):
    model = Layers(range(LAYERS), seed=9)
    state = {"model": model.state_dict()}
    with pytest.warns(UserWarning, match="single process"):
        load(state, checkpoint_id=saved)
    pipe, _ = pipeline("gpipe", 2, LocalTransport(), seed=9)
    load_checkpoint(pipe, saved)
    for name, value in weights(pipe).items():
        assert torch.equal(value, state["model"][name])


def test_c33_names_can_be_said(tmp_path: Path):
    def plain(seed: int) -> tuple[Pipeline, list[nn.Module]]:
        torch.manual_seed(seed)
        modules: list[nn.Module] = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
        stages = [Stage(module, i, 2) for i, module in enumerate(modules)]
        plan = fb.build("1f1b", num_ranks=2, num_microbatches=2)
        return Pipeline(stages, plan, loss_fn=mse, transport=LocalTransport()), modules

    def rename(stage: int, name: str) -> str:
        return f"layers.{stage}.0.{name}"

    pipe, modules = plain(0)
    with pytest.raises(ParameterError, match=r"different tensors of the name weight; rename="):
        save_checkpoint(pipe, tmp_path / "a")
    assert not [*tmp_path.iterdir()]
    save_checkpoint(pipe, tmp_path / "a", rename=rename)
    other, loaded = plain(1)
    assert load_checkpoint(other, tmp_path / "a", rename=rename) is None
    for a, b in zip(modules, loaded, strict=True):
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            assert torch.equal(p, q)
    with pytest.raises(ParameterError, match="the checkpoint has no weight; are the names"):
        load_checkpoint(other, tmp_path / "a")


def twice_on_ranks(transport: Transport, rank: int, path: Path) -> str:
    plan = fb.build("1f1b", num_ranks=2, num_microbatches=2)
    torch.manual_seed(rank)
    stage = Stage(nn.Linear(WIDTH, WIDTH), rank, 2)
    pipe = Pipeline(stage, plan, loss_fn=mse, transport=transport)
    with pytest.raises(ParameterError) as caught:
        save_checkpoint(pipe, path)
    return str(caught.value)


def test_c33_one_name_on_two_ranks_is_an_error_on_both(pool: Callable[[int], Pool], tmp_path: Path):
    messages = pool(2).run(over_gloo, twice_on_ranks, tmp_path / "a")
    assert all("different tensors of the name" in text for text in messages)
    assert not [*tmp_path.iterdir()]


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file can grow beyond ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_c33_a_full_disk_leaves_nothing_behind(tmp_path: Path):
    pipe, optimizers = pipeline("1f1b", 2, LocalTransport())
    with full_disk(3000), pytest.raises(ExecutionError, match=r"a: .*file __0_0\.distcp cannot be"):
        save_checkpoint(pipe, tmp_path / "a", optimizers=optimizers)
    assert not [*tmp_path.iterdir()]
    save_checkpoint(pipe, tmp_path / "a", optimizers=optimizers)


def full_on_one(transport: Transport, rank: int, path: Path) -> str:
    pipe, optimizers = pipeline("1f1b", 2, transport, rank)
    with full_disk(3000 if rank else 1_000_000), pytest.raises(ExecutionError) as caught:
        save_checkpoint(pipe, path, optimizers=optimizers)
    train(pipe, optimizers, range(1))
    return str(caught.value)


def test_c33_a_full_disk_of_one_rank_is_an_error_on_all(
    pool: Callable[[int], Pool], tmp_path: Path
):
    for text in pool(2).run(over_gloo, full_on_one, tmp_path / "a"):
        assert "__1_0.distcp cannot be written" in text
        assert "process 1" in text
    assert not [*tmp_path.iterdir()]


def test_c33_a_file_cut_short_is_named(saved: Path):
    file = saved / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-100])
    pipe, _ = pipeline("1f1b", 2, LocalTransport())
    with pytest.raises(ExecutionError, match=r"step2: .*file __0_0\.distcp is not complete"):
        load_checkpoint(pipe, saved)
    file.unlink()
    with pytest.raises(ExecutionError, match=r"it has 0 of \d+ bytes"):
        load_checkpoint(pipe, saved)


def test_c33_a_changed_byte_is_noticed(saved: Path):
    pipe, _ = pipeline("1f1b", 2, LocalTransport())
    load_checkpoint(pipe, saved)
    weight = weights(pipe)["layers.5.0.weight"]
    file = saved / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    content[content.index(weight.numpy().tobytes()) + 10] ^= 1
    file.write_bytes(content)
    with pytest.raises(
        ExecutionError, match=r"__0_0\.distcp is damaged, in model\.layers\.5\.0\.w"
    ):
        load_checkpoint(pipe, saved)


def test_c33_a_damaged_or_missing_table_is_named(saved: Path):
    pipe, _ = pipeline("1f1b", 2, LocalTransport())
    table = saved / ".metadata"
    table.write_bytes(table.read_bytes()[: table.stat().st_size // 2])
    with pytest.raises(ExecutionError, match=r"step2: .*file \.metadata is damaged"):
        load_checkpoint(pipe, saved)
    with pytest.raises(ParameterError, match=r"step2/none: not a checkpoint"):
        load_checkpoint(pipe, saved / "none")


def test_c33_nothing_is_overwritten(saved: Path):
    pipe, _ = pipeline("1f1b", 2, LocalTransport())
    with pytest.raises(ParameterError, match="it exists already"):
        save_checkpoint(pipe, saved)
    assert (saved / ".metadata").exists()


def test_c33_another_model_is_refused(saved: Path):
    plan = fb.build("1f1b", num_ranks=2, num_microbatches=4)

    def of(*modules: nn.Module) -> Pipeline:
        stages = [Stage(module, s, 2) for s, module in enumerate(modules)]
        return Pipeline(stages, plan, loss_fn=mse, transport=LocalTransport())

    with pytest.raises(ParameterError, match=r"no stage has layers\.[67]\.0\..*, which the check"):
        load_checkpoint(of(Layers(range(3), seed=0), Layers(range(3, 6), seed=0)), saved)
    wide = Layers(range(4), seed=0)
    wide.layers["1"] = nn.Sequential(nn.Linear(WIDTH, 3))
    with pytest.raises(ParameterError, match=r"layers\.1\.0\.weight has the shape \(3, 8\), but"):
        load_checkpoint(of(wide, Layers(range(4, 8), seed=0)), saved)


def test_c33_another_optimizer_is_refused(saved: Path):
    pipe, _ = pipeline("1f1b", 2, LocalTransport())
    parameters = [p for stage in pipe.stages.values() for p in stage.module.parameters()]
    with pytest.raises(ParameterError, match="is that of a AdamW, not of a SGD"):
        load_checkpoint(pipe, saved, optimizers=SGD(parameters, lr=1.0))
    with pytest.raises(ParameterError, match="in no stage of this process"):
        load_checkpoint(pipe, saved, optimizers=SGD([nn.Parameter(torch.ones(3))], lr=1.0))


@pytest.mark.parametrize("extra", [nn.Linear(1, 1), lambda: 3, {"optimizer": SGD}])
def test_c33_what_could_not_be_read_is_not_written(extra: object, tmp_path: Path):
    pipe, _ = pipeline("1f1b", 2, LocalTransport())
    with pytest.raises(ParameterError, match="extra may hold tensors, plain values"):
        save_checkpoint(pipe, tmp_path / "a", extra=extra)
    assert not [*tmp_path.iterdir()]


def test_c33_options_and_buffers_are_kept(tmp_path: Path):
    def of(rate: float) -> tuple[Pipeline, nn.Module, Optimizer]:
        module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
        plan = fb.build("gpipe", num_ranks=1, num_microbatches=2)
        pipe = Pipeline(Stage(module, 0, 1), plan, loss_fn=mse, transport=LocalTransport())
        return pipe, module, SGD(module.parameters(), lr=rate, momentum=0.9)

    pipe, module, optimizer = of(0.25)
    train(pipe, [optimizer], range(2))
    save_checkpoint(pipe, tmp_path / "a", optimizers=optimizer)
    other, loaded, again = of(0.5)
    load_checkpoint(other, tmp_path / "a", optimizers=again)
    assert again.param_groups[0]["lr"] == 0.25
    for name, value in module.state_dict().items():
        assert_same(loaded.state_dict()[name], value, exact=True, what=name)
    for one, two in zip(optimizer.state.values(), again.state.values(), strict=True):
        assert torch.equal(one["momentum_buffer"], two["momentum_buffer"])


def fails_on_one(transport: Transport, rank: int, path: Path) -> str:
    pipe, _ = pipeline("1f1b", 2, transport, rank)

    def rename(stage: int, name: str) -> str:
        return name if rank else str(1 / 0)

    with pytest.raises(ExecutionError) as caught:
        save_checkpoint(pipe, path, rename=rename)
    return str(caught.value)


def test_c33_an_error_of_one_rank_s_own_functions_is_one_on_all(
    pool: Callable[[int], Pool], tmp_path: Path
):
    for text in pool(2).run(over_gloo, fails_on_one, tmp_path / "a"):
        assert "ZeroDivisionError: division by zero (in process 0)" in text
    assert not [*tmp_path.iterdir()]
