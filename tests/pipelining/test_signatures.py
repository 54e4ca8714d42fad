"""Changing the import is enough: names, signatures and what ``isinstance`` says."""

import inspect
from importlib import import_module
from typing import Any

import pytest
import torch.distributed.pipelining as theirs
import torch.distributed.pipelining.schedules as their_schedules
import torch.distributed.pipelining.stage as their_stages
from torch import nn

import fullbore.pipelining as ours
from fullbore.pipelining import schedules, stage

pytestmark = pytest.mark.torch

# What torchtitan and others import although it is private.
PRIVATE = [
    *("_PipelineSchedule", "_PipelineScheduleRuntime", "_PipelineContext", "_ScheduleForwardOnly"),
    *("_CustomFunctionProtocol", "_wait_batch_p2p", "_format_pipeline_order"),
    *("_Action", "_ComputationType", "_simulate_comms_compute"),
    *("FORWARD", "FULL_BACKWARD", "BACKWARD_INPUT", "BACKWARD_WEIGHT", "OVERLAP_F_B"),
    *("F", "B", "I", "W", "UNSHARD", "RESHARD", "REDUCE_GRAD"),
    *("SEND_F", "RECV_F", "SEND_B", "RECV_B"),
]
CLASSES = [
    *("ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B", "ScheduleLoopedBFS"),
    *("ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble", "ScheduleDualPipeV"),
    *("PipelineScheduleSingle", "PipelineScheduleMulti"),
]


@pytest.mark.parametrize("module", ["", ".schedules", ".stage", ".microbatch"])
def test_every_public_name_is_here(module: str):
    wanted = import_module(f"torch.distributed.pipelining{module}").__all__
    found = import_module(f"fullbore.pipelining{module}")
    assert set(wanted) <= set(found.__all__)
    assert all(hasattr(found, name) for name in found.__all__)


def test_private_names_that_others_import():
    assert all(hasattr(schedules, name) and hasattr(their_schedules, name) for name in PRIVATE)


def begins_alike(found: Any, wanted: Any) -> bool:
    """Whether every call that ``wanted`` takes means the same to ``found``."""
    theirs_, ours_ = (inspect.signature(f).parameters for f in (wanted, found))
    positional = (inspect.Parameter.POSITIONAL_OR_KEYWORD,)
    names = [[n for n, p in taken.items() if p.kind in positional] for taken in (theirs_, ours_)]
    defaults = all(
        ours_[name].default == parameter.default
        for name, parameter in theirs_.items()
        if name in ours_ and parameter.default is not inspect.Parameter.empty
    )
    return names[1][: len(names[0])] == names[0] and set(theirs_) <= set(ours_) and defaults


@pytest.mark.parametrize("name", CLASSES)
def test_schedules_are_made_and_called_alike(name: str):
    found, wanted = getattr(schedules, name), getattr(their_schedules, name)
    assert begins_alike(found, wanted)
    assert begins_alike(found.step, wanted.step)
    assert begins_alike(found.eval, wanted.eval)
    newer = {"arg_mbs", "kwarg_mbs", "target_mbs", "losses", "loss_kwargs", "return_outputs"}
    assert newer <= set(inspect.signature(found.step).parameters)
    assert newer <= set(inspect.signature(found.eval).parameters)


@pytest.mark.parametrize(
    ("cls", "method"),
    [
        ("_PipelineScheduleRuntime", "_load_csv"),
        ("_PipelineScheduleRuntime", "_dump_csv"),
        ("_PipelineScheduleRuntime", "_prepare_schedule_with_comms"),
        ("_PipelineScheduleRuntime", "_simulate"),
        ("_PipelineScheduleRuntime", "register_custom_function"),
        ("PipelineScheduleMulti", "_load_csv"),
        ("PipelineScheduleMulti", "_dump_csv"),
    ],
)
def test_methods_are_called_alike(cls: str, method: str):
    found, wanted = (getattr(getattr(m, cls), method) for m in (schedules, their_schedules))
    assert begins_alike(found, wanted)


def test_stages_are_made_and_called_alike():
    assert begins_alike(ours.PipelineStage, theirs.PipelineStage)
    assert begins_alike(ours.build_stage, theirs.build_stage)
    served = [
        *("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"),
        *("set_local_fwd_input", "get_local_bwd_output", "set_local_bwd_input"),
        *("scale_grads", "perform_reduce_grad", "clear_runtime_states"),
    ]
    for name in served:
        assert begins_alike(getattr(ours.PipelineStage, name), getattr(theirs.PipelineStage, name))


def test_newer_arguments_of_schedules():
    for name in CLASSES[2:7]:
        taken = inspect.signature(getattr(schedules, name)).parameters
        assert {"defer_pp_recv", "max_active_stages", "unshard_lookahead"} <= set(taken)


def test_the_tracer_is_torchs():
    for name in ("Pipe", "pipeline", "pipe_split", "SplitPoint"):
        assert getattr(ours, name) is getattr(theirs, name)


def test_what_is_what():
    """Code that asks with torch's classes and code that asks with ours get the same answer."""
    stages = [ours.PipelineStage(nn.Linear(2, 2), s, 2, "cpu") for s in range(2)]
    schedule = schedules.get_schedule_class("zbvzerobubble")(stages, 2)
    for module in (schedules, their_schedules):
        assert isinstance(schedule, module.PipelineScheduleMulti)
        assert isinstance(schedule, module._PipelineScheduleRuntime)
        assert not isinstance(schedule, module.PipelineScheduleSingle)
        assert issubclass(schedules.ScheduleGPipe, module.PipelineScheduleSingle)
        assert not issubclass(schedules.ScheduleGPipe, module.PipelineScheduleMulti)
    for module in (stage, their_stages):
        assert isinstance(stages[0], module._PipelineStageBase)
        assert isinstance(stages[0], module.PipelineStage)
    assert (
        schedules.get_schedule_class("PipelineScheduleSingle") is schedules.PipelineScheduleSingle
    )
    assert not issubclass(their_schedules.ScheduleGPipe, schedules.PipelineScheduleSingle)


def test_a_name_that_is_none():
    with pytest.raises(ValueError, match="no schedule 'biuld'; there are 1F1B"):
        schedules.get_schedule_class("biuld")
    with pytest.raises(TypeError, match="is a string"):
        schedules.get_schedule_class(3)  # type: ignore[arg-type]
