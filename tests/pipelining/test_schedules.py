"""The schedule classes: where stages are, orders, files, options."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.pipelining.schedules as theirs
from tests.pipelining.local import MULTI, make, stages
from tests.pipelining.programs import CSV, batches, layers, mean_square
from tests.reference import gradients, reference
from torch import Tensor, nn

from fullbore.errors import FormatError, InvalidSchedule, ParameterError
from fullbore.pipelining._actions import write_order
from fullbore.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleZBVZeroBubble,
    _Action,
    _ComputationType,
    _PipelineScheduleRuntime,
    get_schedule_class,
)
from fullbore.schedules import build

pytestmark = pytest.mark.torch

# --- placement and orders


def test_all_stages_in_one_process_play_all_ranks():
    schedule = make("ZBVZeroBubble")
    assert (schedule.pp_group_size, schedule.rank, schedule.loss_rank) == (2, 0, 0)
    assert schedule.stage_index_to_group_rank == {0: 0, 1: 1, 2: 1, 3: 0}
    assert make("Interleaved1F1B").loss_rank == 1
    odd = make("Interleaved1F1B", modules=layers(3))
    assert (odd.pp_group_size, odd.loss_rank) == (1, 0)


def test_stages_that_do_not_fit():
    with pytest.raises(ValueError, match="requires exactly 2 stages on each rank; there are 3"):
        make("DualPipeV", modules=layers(3))
    for number in (0, -1, "4", 4.0):
        with pytest.raises(ValueError, match=f"a whole number of at least 1, got {number!r}"):
            make("LoopedBFS", number)  # type: ignore[arg-type]
    (first, *_) = stages(layers(4))
    with pytest.raises(ValueError, match="one stage a rank; there are 4 stages and 1 ranks"):
        ScheduleGPipe(first, 4)
    with pytest.raises(ValueError, match="4 stages on 1 ranks"):
        ScheduleDualPipeV([first], 4)
    lone = _PipelineScheduleRuntime([first], 4, mean_square)
    with pytest.raises(ValueError, match="the schedule has 2 ranks, the process group 1"):
        lone._prepare_schedule_with_comms(make("LoopedBFS").pipeline_order)


@pytest.mark.parametrize("name", MULTI)
def test_actions_are_torchs_own(name: str):
    """Text, attributes and equality, of actions and of types."""
    schedule = make(name)
    for order in (schedule.pipeline_order, schedule.pipeline_order_with_comms):
        for action in (action for rank in order for action in order[rank]):
            same = theirs._Action.from_str(str(action))
            assert same == action
            assert repr(same) == repr(action)
            assert hash(same) == hash(action)
            assert same.computation_type == action.computation_type
            assert _Action.from_str(f" {same} ") == action
            assert same.is_compute_op == action.is_compute_op
    assert {type(key) for key in schedule.pipeline_order} == {int}


def test_texts_that_are_no_action():
    assert _Action.from_str("  ") is None
    with pytest.raises(FormatError):
        _Action.from_str("2F0garbage")
    with pytest.raises(RuntimeError, match="Invalid computation type X"):
        _ComputationType.from_str("X")
    assert _ComputationType.from_str("B") is _ComputationType.FULL_BACKWARD


def test_a_single_stage_schedule_shows_the_order_of_all_ranks():
    (stage,) = stages(layers(1))
    schedule = ScheduleGPipe(stage, 3)
    assert [str(a) for a in schedule.pipeline_order[0]] == [
        "0F0",
        "0F1",
        "0F2",
        "0B0",
        "0B1",
        "0B2",
    ]
    with pytest.raises(ParameterError, match="PipelineScheduleSingle is abstract"):
        PipelineScheduleSingle(stage, 3).step(torch.zeros(3, 8))


# --- orders that are given


def runtime(modules: list[nn.Module], **options: Any) -> _PipelineScheduleRuntime:
    return _PipelineScheduleRuntime(stages(modules), 4, mean_square, **options)


def check(schedule: Any, modules: list[nn.Module]) -> None:
    """A step leaves the reference's gradients."""
    x, y = batches(1)[0]
    parts = [(part,) for part in x.tensor_split(4)]
    wanted = reference(modules, parts, y.tensor_split(4), weights=[0.25] * 4)
    for module in modules:
        module.zero_grad()
    schedule.step(x, target=y)
    for found, named in zip(gradients(modules), wanted.gradients, strict=True):
        for name, gradient in named.items():
            torch.testing.assert_close(found[name], gradient)


@pytest.mark.parametrize("cls", [_PipelineScheduleRuntime, PipelineScheduleMulti])
def test_a_file_of_computation(cls: type[PipelineScheduleMulti], tmp_path: Path):
    (tmp_path / "a.csv").write_text(CSV)
    modules = layers(4)
    schedule = cls(stages(modules), 4, mean_square)
    schedule._load_csv(str(tmp_path / "a.csv"))
    check(schedule, modules)
    assert (schedule.pp_group_size, schedule.loss_rank) == (2, 1)
    named = {"format": "compute_only"} if cls is _PipelineScheduleRuntime else {}
    schedule._dump_csv(str(tmp_path / "b.csv"), **named)
    assert (tmp_path / "b.csv").read_text().split() == CSV.split()


@pytest.mark.parametrize("name", MULTI)
def test_files_go_to_torch_and_back(name: str, tmp_path: Path):
    path, modules = str(tmp_path / "a.csv"), layers(4)
    schedule = make(name)
    schedule._dump_csv(path)
    again = runtime(modules)
    again._load_csv(path, format="compute_comms")
    assert again.pipeline_order_with_comms == schedule.pipeline_order_with_comms
    check(again, modules)
    rows = [
        [theirs._Action.from_str(cell) for cell in row.split(",")]
        for row in Path(path).read_text().split()
    ]
    assert dict(enumerate(rows)) == schedule.pipeline_order_with_comms


def test_an_order_of_torchs_actions_with_idle_slots():
    order = {
        rank: [None, *map(theirs._Action.from_str, row.split(","))]
        for rank, row in enumerate(CSV.split())
    }
    modules = layers(4)
    schedule = runtime(modules)
    schedule._prepare_schedule_with_comms(order)
    check(schedule, modules)
    with_comms = schedule.pipeline_order_with_comms
    schedule = runtime(modules)
    schedule._prepare_schedule_with_comms(with_comms, format="compute_comms")
    check(schedule, modules)


def test_an_order_that_is_filled_in_after_it_was_set():
    modules = layers(4)
    schedule = PipelineScheduleMulti(stages(modules), 4, mean_square)
    for rank, row in enumerate(CSV.split()):
        schedule.pipeline_order[rank] = [_Action.from_str(cell) for cell in row.split(",")]
    check(schedule, modules)
    schedule.pipeline_order = make("DualPipeV").pipeline_order
    check(schedule, modules)
    assert schedule.loss_rank == 0


def test_an_order_that_is_edited():
    """Looking at it changes nothing; whatever was changed last is what runs."""
    modules = layers(4)
    schedule = runtime(modules)
    schedule.pipeline_order = make("LoopedBFS").pipeline_order
    before = [str(a) for a in schedule.pipeline_order_with_comms[0]]
    check(schedule, modules)
    pipeline = schedule._pipeline
    assert schedule.pipeline_order
    check(schedule, modules)
    assert schedule._pipeline is pipeline
    schedule.pipeline_order[0][:2] = schedule.pipeline_order[0][1::-1]
    check(schedule, modules)
    assert schedule._pipeline is not pipeline
    after = [str(a) for a in schedule.pipeline_order_with_comms[0]]
    assert [a for a in after if "F" in a][:2] == ["0F1", "0SEND_F1"]
    assert sorted(after) == sorted(before)
    vee = make("ZBVZeroBubble")
    schedule.pipeline_order_with_comms = vee.pipeline_order_with_comms
    check(schedule, modules)
    assert schedule.loss_rank == 0
    schedule._prepare_schedule_with_comms(make("LoopedBFS").pipeline_order)
    assert [str(a) for a in schedule.pipeline_order_with_comms[0]] == before
    single = ScheduleGPipe(stages(modules[:1])[0], 4, mean_square)
    single.pipeline_order[0].reverse()
    with pytest.raises(InvalidSchedule, match="0B3"):
        single.step(*batches(1)[0][:1], target=batches(1)[0][1])


class Backwards(PipelineScheduleSingle):
    """An order of one's own, by the method that torch has for it."""

    def _get_pipeline_order(self) -> Any:
        texts = [f"0{kind}{m}" for m in (2, 1, 0) for kind in "FIW"]
        return {0: [_Action.from_str(text) for text in texts]}


def test_an_order_of_a_derived_class():
    (module,) = layers(1)
    (stage,) = stages([module])
    losses: list[Tensor] = []
    x, y = batches(1, rows=3)[0]
    Backwards(stage, 3, mean_square).step(x, target=y, losses=losses)
    wanted = reference([module], [(row,) for row in x.split(1)], y.split(1), weights=[1 / 3] * 3)
    assert all(map(torch.equal, losses, wanted.losses))


def test_a_loop_of_ones_own_is_refused():
    with pytest.raises(TypeError, match="Own has a loop of its own, _step_microbatches"):

        class Own(PipelineScheduleSingle):
            def _step_microbatches(self, *args: Any, **kwargs: Any) -> None:
                """Would never be called."""


BAD: list[tuple[str, str, type[Exception], str]] = [
    ("0F0,0X0\n1F0", "compute_only", FormatError, "row 1, column 2"),
    ("0F0,0SEND_F0\n1F0", "compute_only", ValueError, "SEND_F"),
    (CSV.replace("0B3", ""), "compute_only", InvalidSchedule, "0B3|stage 0"),
    (CSV.replace("0F0,0F1", "0F1,0F1"), "compute_only", InvalidSchedule, "0F1"),
    (CSV, "compute_comms", InvalidSchedule, "is not sent the activations"),
    (CSV, "other", NotImplementedError, "format='other' is not implemented"),
]


@pytest.mark.parametrize(("text", "form", "kind", "message"), BAD)
def test_files_that_are_refused(
    text: str, form: Any, kind: type[Exception], message: str, tmp_path: Path
):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(kind, match=message):
        runtime(layers(4))._load_csv(str(tmp_path / "a.csv"), format=form)


def test_orders_that_are_refused():
    schedule, order = runtime(layers(4)), make("LoopedBFS").pipeline_order
    mixed = {**order, 0: [order[0][0], _Action.from_str("0SEND_F0")]}
    with pytest.raises(ValueError, match="rank 0, position 1: 0SEND_F0 has no place"):
        schedule._prepare_schedule_with_comms(mixed)
    with pytest.raises(ValueError, match=r"ranks must be 0 to P-1, got \[0, 2\]"):
        schedule._prepare_schedule_with_comms({0: order[0], 2: order[1]})
    with pytest.raises(ValueError, match="3 is no action"):
        schedule._prepare_schedule_with_comms({0: [3]})
    with pytest.raises(NotImplementedError):
        schedule._prepare_schedule_with_comms(order, format="x")  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="\"compute_only\" is read here, not 'compute_comms'"):
        PipelineScheduleMulti(stages(layers(4)), 4)._load_csv("x", format="compute_comms")


def test_an_order_for_the_stages_of_other_ranks(tmp_path: Path):
    """A V in a file, where this rank has the stages of a loop: refused when it is loaded."""
    make("ZBVZeroBubble")._dump_csv(str(tmp_path / "v.csv"), format="compute_only")
    own = stages(layers(4))[::2]
    for stage in own:
        stage.group_size = 2
    schedule = _PipelineScheduleRuntime(own, 4, mean_square)
    with pytest.raises(
        ParameterError, match=r"rank 0 must hold stages 0, 3 \(vee placement\), got"
    ):
        schedule._load_csv(str(tmp_path / "v.csv"))
    assert schedule.n_local_stages == 2


def test_without_a_schedule():
    for call in (
        lambda s: s.step(torch.zeros(4, 8), target=torch.zeros(4, 8)),
        lambda s: s._simulate(),
        lambda s: s._dump_csv("x.csv"),
        lambda s: s.pipeline_order_with_comms,
    ):
        with pytest.raises(
            ParameterError, match=r"has no schedule yet: call _load_csv\(filename\)"
        ):
            call(runtime(layers(4)))


# --- options


@pytest.mark.parametrize("name", MULTI)
def test_late_receives_are_right(name: str):
    """torch's give wrong gradients for some of these, without an error."""
    modules = layers(6)
    schedule = make(name, 6, modules, defer_pp_recv=True)
    early = make(name, 6, modules)
    assert schedule.pp_group_size == 3
    assert schedule.pipeline_order == early.pipeline_order
    assert schedule.pipeline_order_with_comms != early.pipeline_order_with_comms
    x, y = batches(1, rows=12)[0]
    wanted = reference(modules, [(p,) for p in x.split(2)], y.split(2), weights=[1 / 6] * 6)
    schedule.step(x, target=y)
    for found, named in zip(gradients(modules), wanted.gradients, strict=True):
        torch.testing.assert_close(found, named)


def unshards(**options: Any) -> list[str]:
    """Of a rank with four stages."""
    plan = build("interleaved_1f1b", num_ranks=2, num_microbatches=4, stages_per_rank=4)
    schedule = runtime(layers(8), **options)
    schedule._prepare_schedule_with_comms(write_order(plan))
    return [str(a) for a in schedule.pipeline_order_with_comms[0] if "SHARD" in str(a)]


def test_how_many_stages_are_kept_gathered():
    assert unshards()[:3] == ["0UNSHARD", "2UNSHARD", "4UNSHARD"]
    assert unshards(max_active_stages=1)[:3] == ["0UNSHARD", "0RESHARD", "2UNSHARD"]
    assert unshards(unshard_lookahead=(1, 2)) != unshards(unshard_lookahead="full") == unshards()
    assert unshards(unshard_lookahead="auto") == unshards(unshard_lookahead=(2, 3))
    with pytest.raises(ValueError, match="unshard_lookahead must be 'full', 'auto' or a tuple"):
        unshards(unshard_lookahead="none")


def test_use_full_backward_is_gone():
    with pytest.warns(DeprecationWarning, match="'use_full_backward' is no longer supported"):
        PipelineScheduleMulti(stages(layers(2)), 2, use_full_backward=True)


def test_a_schedule_is_used_as_a_partial():
    """Programs choose the class first, and the rest later."""
    kind = partial(get_schedule_class("DualPipeV"), n_microbatches=4, loss_fn=mean_square)
    modules = layers(4)
    check(kind(stages(modules)), modules)
    assert isinstance(kind(stages(modules)), ScheduleDualPipeV)
    assert not isinstance(kind(stages(modules)), ScheduleZBVZeroBubble)
