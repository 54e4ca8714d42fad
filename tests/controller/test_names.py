"""What Monarch calls things: scripts that are written for it run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.controller import monarch_script as script
from tests.controller.cases import data, make
from tests.reference import WIDTH, assert_same, gradients, linear_tanh, mse, reference
from torch import Tensor, nn

import fullbore as fb
from fullbore.controller import Factory, PipelineParallelism
from fullbore.errors import ParameterError
from fullbore.ir import executable_order

pytestmark = pytest.mark.torch

NUM_MICROBATCHES = script.BATCH // script.MICROBATCH


def unpipelined(num_stages: int) -> tuple[list[Tensor], list[script.Chunk]]:
    """What ``script.train`` must give."""
    chunks, (x, y) = script.make_chunks(num_stages), script.make_batch()
    config = script.CONFIG
    optimizers = [
        script.config_fn(
            config.weight_decay,
            config.learning_rate,
            (config.beta1, config.beta2),
            config.device_type,
            config.optimizer,
            list(chunk.parameters()),
        )
        for chunk in chunks
    ]
    losses = []
    for _ in range(script.STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        xs, ys = x.split(script.MICROBATCH), y.split(script.MICROBATCH)
        weights = [1 / NUM_MICROBATCHES] * NUM_MICROBATCHES
        result = reference(chunks, [(part,) for part in xs], ys, weights=weights, on_copy=False)
        losses.append(torch.stack([loss / NUM_MICROBATCHES for loss in result.losses]).sum())
        for optimizer in optimizers:
            optimizer.step()
    return losses, chunks


def assert_trained(found: tuple[list[Tensor], list[script.Chunk]]) -> None:
    losses, chunks = found
    wanted = unpipelined(len(chunks))
    for step, (a, b) in enumerate(zip(losses, wanted[0], strict=True)):
        assert_same(a, b, exact=True, what=f"loss {step}")
    for stage, (chunk, other) in enumerate(zip(chunks, wanted[1], strict=True)):
        for name, parameter in chunk.named_parameters():
            assert_same(
                parameter, other.get_parameter(name), exact=True, what=f"stage {stage} {name}"
            )


@pytest.mark.parametrize("dispatch", ["step", "action"])
@pytest.mark.parametrize("num_stages", [2, 4])
def test_a_script_trains_as_the_unpipelined_model_does(num_stages: int, dispatch: str) -> None:
    options: dict[str, Any] = {"dispatch": dispatch}
    with script.make_pipeline(["mesh 0", "mesh 1"], num_stages, **options) as pipeline:
        assert_trained(script.train(pipeline))


def test_a_script_dispatches_the_schedule_itself() -> None:
    with script.make_pipeline(2, 4) as pipeline:
        ran, loss = script.dispatch(pipeline)
        found = gradients(pipeline.stages)  # type: ignore[arg-type] # modules, in this process
        for rank, program in enumerate(pipeline.schedule.programs):
            assert tuple(a for a in ran[rank] if a is not None) == program
        assert None in ran[1]
    with script.make_pipeline(2, 4) as twin:
        assert torch.equal(loss, twin.run(*script.make_batch()))
        wanted = gradients(twin.stages)  # type: ignore[arg-type]
    for a, b in zip(found, wanted, strict=True):
        assert a.keys() == b.keys()
        for name, gradient in a.items():
            assert_same(gradient, b[name], exact=True, what=name)


def test_a_script_runs_the_actions_itself() -> None:
    with script.make_pipeline(2, 2) as pipeline:
        schedule = pipeline.schedule
        order = [schedule.programs[rank][step] for rank, step in executable_order(schedule).steps]
        loss = script.run_actions(pipeline, order)
        assert torch.equal(loss, script.run_actions(pipeline, list(map(str, order))))
        with pytest.raises(ParameterError, match="no step is under way"):
            pipeline.run_action("0F0")


def test_what_scripts_read() -> None:
    with script.make_pipeline(2, 4) as pipeline:
        assert (pipeline.batch_size, pipeline.microbatch_size) == (8, 2)
        assert pipeline.num_microbatches == 4
        assert pipeline.num_model_chunks == len(pipeline.stages) == 4
        assert pipeline.pipeline_parallel_size == pipeline.meshes == 2
        assert pipeline.stage_to_rank_map == {0: 0, 1: 1, 2: 0, 3: 1}
        assert [pipeline.stage_to_rank(stage) for stage in range(4)] == [0, 1, 0, 1]
        with pytest.raises(ParameterError, match="there is no stage 4"):
            pipeline.stage_to_rank(4)
        assert pipeline.loss_layer is pipeline.loss_fn
        assert (pipeline.loss, pipeline.loss_list) == (None, [])
        loss = pipeline.run(*script.make_batch())
        assert pipeline.loss is loss
        assert pipeline.loss_list is not None
        assert torch.equal(torch.stack(pipeline.loss_list).sum(), loss)
        orders, ranks = pipeline.generate_pipeline_ir_schedule("dora-dfs", 4, 2, 8, 2)
        assert orders == pipeline.all_rank_actions
        assert ranks == pipeline.stage_to_rank_map
    with pytest.raises(ParameterError, match="multiple of microbatch_size"):
        PipelineParallelism.generate_pipeline_ir_schedule("dora-dfs", 4, 2, 8, 3)


def test_another_order_than_the_processes_were_told_is_refused() -> None:
    given: dict[str, Any]
    with script.make_pipeline(2, 2) as pipeline:
        order = pipeline.all_rank_actions
        order[0].reverse()
        other = fb.lower(fb.build("gpipe", num_ranks=2, num_microbatches=4))
        for given in (
            {"pipeline_order": order},
            {"pipeline_order": other},
            {"num_stages": 3},
            {"stage_to_rank": lambda stage: 1 - stage},
        ):
            with pytest.raises(ParameterError, match="another order than the processes were told"):
                pipeline.dispatch_pp_schedule(**given)
        with pytest.raises(ParameterError, match="no step is under way"):
            pipeline.dispatch_pp_schedule(pipeline_order=pipeline.schedule)


class Keyword(nn.Module):
    """Takes its input by Monarch's name and in no other way."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, scale: float = 1.0, *, input_tensor: Tensor) -> Tensor:
        return scale * self.linear(input_tensor)  # type: ignore[no-any-return]


def test_stages_get_their_input_by_name_where_they_ask_for_it() -> None:
    stages, (x, y) = [Keyword(), Keyword()], data()
    output = stages[1](input_tensor=stages[0](input_tensor=x))
    with make(2, stages) as pp:
        assert torch.equal(pp.eval(x, y).output, output)
        pp.run(x, y)
        found = gradients(stages)
        assert set(pp.state_dict()) >= {"stages.0.linear.weight"}
    for stage in stages:
        stage.zero_grad()
    mse(stages[1](input_tensor=stages[0](input_tensor=x)), y).backward()
    for a, b in zip(found, gradients(stages), strict=True):
        for name, gradient in a.items():
            assert_same(gradient, b[name], exact=False, what=name)
    with pytest.raises(TypeError, match="input_tensor"):
        stages[0](x)  # what the pipeline had added is gone


class Two(nn.Module):
    """Takes its input by Monarch's name in the first place, and another one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, input_tensor: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(input_tensor) + other, other


def test_a_stage_of_several_inputs_gets_each_in_its_place() -> None:
    stages, (x, _) = [Two(), Two()], data()
    with make(2, stages) as pp:
        found = pp.eval((x, 2 * x)).output
    assert torch.equal(found[0], stages[1](*stages[0](x, 2 * x))[0])


def test_factories_take_their_input_by_name_too() -> None:
    stages = [Factory("tests.controller.test_names.Keyword") for _ in range(2)]
    with make(2, stages) as pp:
        assert torch.isfinite(pp.run(*data()))


def test_a_loss_of_several_numbers_is_averaged() -> None:
    modules, (x, y) = linear_tanh(2), data()
    losses = []
    for reduction in ("none", "mean"):
        with make(2, modules, loss_fn=nn.MSELoss(reduction=reduction)) as pp:
            losses.append(pp.run(x, y))
    assert torch.equal(*losses)
