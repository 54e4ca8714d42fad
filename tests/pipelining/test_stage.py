"""Stages: what they say of themselves, what they check, and whose they may be."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.pipelining.programs import batches, layers, mean_square
from tests.pool import Pool
from torch import Tensor, nn

from fullbore.errors import ParameterError
from fullbore.pipelining import PipelineStage, ScheduleInterleaved1F1B, build_stage
from fullbore.pipelining.schedules import get_schedule_class
from fullbore.pipelining.stage import PipeliningMetadataError, adopt

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

ROW = torch.empty(2, 8, device="meta")


def stages(modules: list[nn.Module], **declared: Any) -> list[PipelineStage]:
    return [PipelineStage(m, i, len(modules), "cpu", **declared) for i, m in enumerate(modules)]


def test_what_a_stage_says():
    first, *_, last = made = stages(layers(4))
    assert [(s.is_first, s.is_last) for s in (first, last)] == [(True, False), (False, True)]
    assert (first.group_rank, first.group_size, first.group, first.device) == (0, 1, None, "cpu")
    before = first.has_backward
    schedule = ScheduleInterleaved1F1B(made, 2, mean_square)
    assert (before, first.has_backward) == (False, True)
    assert (
        first.stage_index_to_group_rank
        == schedule.stage_index_to_group_rank
        == {0: 0, 1: 1, 2: 0, 3: 1}
    )


@pytest.mark.parametrize("index", [4, -1])
def test_an_index_out_of_range(index: int):
    with pytest.raises(ValueError, match=rf"stage {index} is none of 0\.\.3"):
        PipelineStage(nn.Identity(), index, 4, "cpu")


def test_what_is_no_stage():
    with pytest.raises(
        ParameterError, match="a Linear is no stage: it has no submod; make a Pipel"
    ):
        ScheduleInterleaved1F1B([nn.Linear(2, 2)], 2)
    with pytest.raises(ParameterError, match="at least one stage"):
        ScheduleInterleaved1F1B([], 2)


def test_stages_compute_only_what_their_schedule_runs():
    (stage, _) = stages(layers(2))
    for call in (
        lambda: stage.forward_one_chunk(0, (torch.zeros(2, 8),)),
        lambda: stage.backward_one_chunk(0),
        lambda: stage.backward_weight_one_chunk(0),
        lambda: stage.perform_reduce_grad(4),
    ):
        with pytest.raises(ParameterError, match="is not being computed: stages compute only what"):
            call()


def test_gradients_scaled_by_hand():
    (stage,) = stages([nn.Linear(2, 2, bias=False)])
    stage.submod(torch.ones(1, 2)).sum().backward()
    stage.scale_grads(4)
    gradient = stage.submod.weight.grad
    assert isinstance(gradient, Tensor)
    assert gradient.unique().tolist() == [0.25]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"input_args": ROW[:1]}, r"stage 0: input_args declares \[1, 8\] float32, but the first"),
        ({"input_args": (ROW, ROW)}, r"declares \[2, 8\] float32, \[2, 8\] float32, but"),
        ({"output_args": ROW.double()}, r"stage 0: output_args declares \[2, 8\] float64, but"),
        ({"input_args": (ROW,), "output_args": ROW.T}, r"output_args declares \[8, 2\]"),
    ],
)
def test_declared_tensors_are_compared_with_the_first_microbatch(declared: Any, message: str):
    schedule = ScheduleInterleaved1F1B(stages(layers(2), **declared), 4, mean_square)
    x, y = batches(1)[0]
    with pytest.raises(PipeliningMetadataError, match=message) as caught:
        schedule.step(x, target=y)
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, ValueError)


def test_declared_tensors_that_fit():
    modules = layers(2)
    made = stages(
        modules, input_args=ROW, output_args=(ROW,), input_grads=ROW, output_grads=(None,)
    )
    schedule = ScheduleInterleaved1F1B(made, 3, mean_square)
    x, y = batches(1, rows=5)[0]
    schedule.step(x, target=y)  # the others are shorter
    schedule.step(x[:4], target=y[:4])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def test_gradients_declared_in_other_shapes():
    with pytest.raises(
        PipeliningMetadataError, match=r"stage 0: input_grads declares \[\(8, 2\)\]"
    ):
        PipelineStage(nn.Identity(), 0, 1, "cpu", input_args=ROW, input_grads=ROW.T)
    with pytest.raises(ParameterError, match="input_args must be a tensor or a tuple of tensors"):
        PipelineStage(nn.Identity(), 0, 1, "cpu", input_args="text")  # type: ignore[arg-type]


def test_a_module_may_be_replaced():
    made, modules = stages([nn.Identity(), nn.Identity()]), layers(2)
    schedule = ScheduleInterleaved1F1B(made, 2, mean_square)
    x, y = batches(1)[0]
    for stage, module in zip(made, modules, strict=True):
        stage.submod = module
    first = schedule.step(x, target=y)
    assert all(p.grad is not None for m in modules for p in m.parameters())
    made[1].submod = nn.Linear(8, 8)
    second = schedule.step(x, target=y)
    assert not torch.equal(first, second)
    assert made[1].submod.weight.grad is not None


def test_a_dw_builder_does_the_weights():
    calls: list[str] = []

    def builder() -> Any:
        return lambda: calls.append("W")

    made = stages(layers(4), dw_builder=builder)
    schedule = get_schedule_class("ZBVZeroBubble")(made, 4, mean_square)
    x, y = batches(1)[0]
    schedule.step(x, target=y)
    assert len(calls) == 16


class TheirStage:
    """What is public about a stage of torch's."""

    def __init__(self, submod: nn.Module, stage_index: int, num_stages: int) -> None:
        self.submod, self.stage_index, self.num_stages = submod, stage_index, num_stages
        self.device, self.group, self.dw_builder = torch.device("cpu"), None, None


def test_stages_of_others_are_taken_as_they_are():
    modules = layers(2)
    made = [TheirStage(nn.Identity(), i, 2) for i in range(2)]
    schedule = ScheduleInterleaved1F1B(made, 2, mean_square)
    x, y = batches(1)[0]
    for stage, module in zip(made, modules, strict=True):
        stage.submod = module
    schedule.step(x, target=y)
    assert all(p.grad is not None for m in modules for p in m.parameters())
    adopted = adopt(made[0])
    adopted.submod = modules[1]
    assert made[0].submod is modules[1]


def stages_of_torchs(rank: int, size: int) -> Any:
    """Torch's stages under our schedule, and a group with more ranks than stages."""
    from torch.distributed.pipelining import PipelineStage as Theirs

    modules = layers(4)
    made = [Theirs(modules[s], s, 4, torch.device("cpu")) for s in (rank, 3 - rank)]
    schedule = get_schedule_class("ZBVZeroBubble")(made, 4, mean_square)
    x, y = batches(1)[0]
    output = schedule.step(x, target=y) if rank == 0 else schedule.step()
    schedule.close()
    try:
        PipelineStage(nn.Identity(), 0, 1, "cpu")
    except RuntimeError as error:
        message = str(error)
    given = all(p.grad is not None for s in (rank, 3 - rank) for p in modules[s].parameters())
    return output is not None, given, message


def test_stages_of_torchs(pool: Any):
    found = pool(2).run(stages_of_torchs)
    message = "a group of 2 ranks has no use for 1 stages: every rank needs one at least"
    assert found == [(True, True, message), (False, True, message)]


def dry_run(rank: int, size: int) -> list[Any]:
    """Each rank of some pipelines alone, in one process."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from fullbore.pipelining import schedules

    found: list[Any] = []
    dist.destroy_process_group()
    placements = {
        "1F1B": [[0], [1]],
        "ZBVZeroBubble": [[0, 3], [1, 2]],
        "DualPipeV": [[0, 3], [1, 2]],
    }
    for name, placement in placements.items():
        for own in placement:
            played = placement.index(own)
            dist.init_process_group("fake", store=FakeStore(), rank=played, world_size=2)
            modules, number = layers(4), 2 * len(own)
            row = torch.empty(2, 8, device="meta")
            made = [PipelineStage(modules[s], s, number, "cpu", input_args=row) for s in own]
            kind = schedules.get_schedule_class(name)
            schedule: Any = kind(made[0] if len(made) == 1 else made, 4, mean_square)  # type: ignore[arg-type]
            losses: list[Tensor] = []
            x, y = batches(1)[0]
            last = number - 1 in own
            schedule.step(
                *([x] if 0 in own else []), **({"target": y, "losses": losses} if last else {})
            )
            schedule.eval(*([x] if 0 in own else []))
            given = all(p.grad is not None for s in own for p in modules[s].parameters())
            found.append((name, played, given, len(losses)))
            dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    schedule = schedules.ScheduleGPipe(PipelineStage(nn.Identity(), 1, 2, "cpu"), 2, mean_square)
    try:
        schedule.step(target=y)
    except RuntimeError as error:
        found.append(str(error))
    return found


def test_one_rank_runs_alone_with_the_fake_backend():
    pool = Pool(1)
    try:
        (found,) = pool.run(dry_run)
    finally:
        pool.close()
    assert found[:-1] == [
        ("1F1B", 0, True, 0),
        ("1F1B", 1, True, 4),
        ("ZBVZeroBubble", 0, True, 4),
        ("ZBVZeroBubble", 1, True, 0),
        ("DualPipeV", 0, True, 4),
        ("DualPipeV", 1, True, 0),
    ]
    assert "stage 1: with the fake backend nothing is received; say what one" in found[-1]


class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        first = self.a(x)
        result: Tensor = self.c(self.b(first.tanh()) * 2) + first
        return result


class Reports(Skips):
    def forward(self, x: Tensor) -> Any:
        first = self.a(x)
        return self.c(self.b(first.tanh())), first


def trace(module: nn.Module, *args: Tensor, at: tuple[str, ...]) -> Any:
    from torch.distributed.pipelining import SplitPoint, pipeline

    return pipeline(module, args, split_spec=dict.fromkeys(at, SplitPoint.BEGINNING))


# The tracer copies what a newer part of torch warns of.
TRACES = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")


@TRACES
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Skips(), "skip connection leads from stage 0 to stage 2"),
        (Reports(), "stage 0 gives a part of the model's result past stage 2"),
    ],
)
def test_skip_connections_are_refused(model: nn.Module, message: str):
    pipe = trace(model, torch.randn(2, 8), at=("b", "c"))
    for index in range(3):
        with pytest.raises(ParameterError, match=message):
            build_stage(pipe.get_stage_module(index), index, pipe.info(), "cpu")
    traced = TheirStage(pipe.get_stage_module(1), 1, 3)
    traced.pipe_info = pipe.info()  # type: ignore[attr-defined]
    with pytest.raises(ParameterError, match=message):
        adopt(traced)


class Late(nn.Module):
    """An input of the model comes in late, between two of the tensors that are handed on."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        first = self.a(x)
        second = first.tanh()
        result: Tensor = (self.b(second) + shift) * first
        return result


@TRACES
def test_an_input_that_comes_in_late_is_a_keyword_argument():
    model = Late()
    x, shift = torch.randn(8, 8), torch.randn(8, 8)
    pipe = trace(model, x[:2], shift[:2], at=("b",))
    made = [build_stage(pipe.get_stage_module(i), i, pipe.info(), "cpu") for i in range(2)]
    modules = [made[0].make().module, made[1].make().module]
    handed_on = modules[0](x)
    assert torch.equal(modules[1](*handed_on, shift=shift), model(x, shift))
