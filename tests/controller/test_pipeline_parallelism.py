"""The controller's class in one process, against the unpipelined model."""

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tests.controller.cases import (
    MICROBATCHES,
    ROWS,
    build_stage,
    by_stage,
    data,
    make,
    sgd,
    wanted,
)
from tests.reference import (
    WIDTH,
    apply,
    assert_gradients,
    assert_same,
    linear_tanh,
    local_pipeline,
    mse,
)
from torch import Tensor, nn

import fullbore as fb
from fullbore.controller import Factory, HostedStage, LocalEngine, PipelineParallelism
from fullbore.errors import ParameterError
from fullbore.schedules import FAMILIES

pytestmark = pytest.mark.torch

TRAINING = [name for name in FAMILIES if name != "forward_only"]


def stages_of(family: str, num_ranks: int) -> list[nn.Module]:
    return linear_tanh(num_ranks * FAMILIES[family].default_stages_per_rank)


@pytest.mark.parametrize("family", TRAINING)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_losses_and_gradients_equal_the_unpipelined_models(family: str, num_ranks: int):
    modules, (x, y) = stages_of(family, num_ranks), data()
    reference = wanted(modules, x, y)
    with make(num_ranks, modules, schedule=family) as pp:
        loss = pp.run(x, y)
        assert pp.last is not None
        assert pp.last.losses is not None
        assert all(map(torch.equal, pp.last.losses, reference.losses))
        assert_same(loss, torch.stack(reference.losses).mean(), exact=False, what="loss")
        assert_gradients(modules, reference.gradients, pp.schedule)


@pytest.mark.parametrize("family", TRAINING)
def test_it_equals_the_runtime_bit_for_bit(family: str):
    modules, (x, y) = stages_of(family, 2), data()
    plan = fb.build(family, num_ranks=2, num_microbatches=MICROBATCHES)
    twins = deepcopy(modules)
    plain = local_pipeline(twins, plan).step(x, target=y)
    with make(2, modules, schedule=plan) as pp:
        assert_same(pp.run(x, y), plain.loss, exact=True, what="loss")
        found = pp.gradients()
    for index, twin in enumerate(twins):
        for name, parameter in twin.named_parameters():
            own = found[by_stage(index, name)]
            assert_same(own, parameter.grad, exact=True, what=f"stage {index} {name}")


def test_training_equals_that_of_the_unpipelined_model():
    modules, (x, y) = linear_tanh(4), data()
    whole = deepcopy(nn.Sequential(*modules))
    optimizers = [sgd(list(module.parameters())) for module in whole]
    with make(2, modules, schedule="interleaved_1f1b", optimizers=sgd) as pp:
        for _ in range(3):
            whole.zero_grad()
            gradients = wanted(list(whole), x, y).gradients
            for module, found in zip(whole, gradients, strict=True):
                for name, parameter in module.named_parameters():
                    parameter.grad = found[name]
            for optimizer in optimizers:
                optimizer.step()
            pp.zero_grad()
            pp.run(x, y)
            pp.step()
        state = pp.state_dict()
    for index, module in enumerate(whole):
        for name, parameter in module.named_parameters():
            assert torch.equal(state[by_stage(index, name)], parameter)


def test_eval_gives_outputs_and_leaves_no_trace():
    modules, (x, y) = linear_tanh(2), data()
    with make(2, modules) as pp:
        found = pp.eval(x, y)
        assert torch.equal(found.output, apply(modules, x))
        assert_same(found.loss, mse(apply(modules, x), y), exact=False, what="loss")
        assert pp.eval(x).losses is None
        assert not any(g is not None for g in pp.gradients().values())


def test_keyword_arguments_reach_every_stage():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor, *, factor: Tensor) -> Any:
            return self.inner(x) * factor

    modules, (x, y) = [Scale(), Scale()], data()
    factor = torch.rand(ROWS, 1)
    with make(2, modules) as pp:
        found = pp.eval(x, y, factor=factor)
        pp.run(x, y, factor=factor)
    assert torch.allclose(found.output, apply(modules, x, factor=factor), atol=1e-6)


def test_stages_are_built_where_they_live():
    stages = [Factory("tests.controller.cases.build_stage", seed) for seed in (0, 1)]
    with make(2, stages) as pp:
        pp.initialize()
        assert torch.equal(
            pp.get_parameter("stages.1.0.weight"), build_stage(1).get_parameter("0.weight")
        )
        with pytest.raises(ParameterError, match="no stage has a parameter of the name 'x'"):
            pp.get_parameter("x")


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (Factory("tests.controller.cases.nothing"), "has no attribute 'nothing'"),
        (Factory("nowhere.at_all"), "No module named 'nowhere'"),
        (Factory("tests.controller.cases.data"), "gives a tuple, not a module"),
    ],
)
def test_a_factory_that_builds_nothing_says_so(stage: Factory, message: str):
    with make(2, [stage, stage]) as pp, pytest.raises(ParameterError, match=message):
        pp.initialize()


@pytest.mark.parametrize(
    ("stages", "options", "message"),
    [
        (3, {}, "3 stages cannot be shared evenly by 2 ranks"),
        (4, {}, "stages_per_rank must be 1; got 2"),
        (2, {"schedule": "no_such"}, "there is no family 'no_such'"),
        (2, {"schedule_options": {"x": 1}}, "there is no option 'x'"),
        (2, {"engine": "cloud"}, "engine must be one of local, monarch; got 'cloud'"),
        (2, {"engine": 5}, "engine must be one of local, monarch, or an engine; got 5"),
        (2, {"engine": LocalEngine}, "or an engine; got <class"),
        (2, {"recover": -1}, "recover must be True, False, or a number"),
        (
            2,
            {"schedule": fb.build("1f1b", num_ranks=2, num_microbatches=3)},
            "3 microbatches; there are 2 ranks, 2 stages and 4 microbatches",
        ),
    ],
)
def test_numbers_that_do_not_fit_are_refused(stages: int, options: dict, message: str):
    with pytest.raises(ParameterError, match=message):
        make(2, linear_tanh(stages), **options)


@pytest.mark.parametrize("meshes", [0, -1, 2.0, True, None, "2", []])
def test_meshes_that_are_no_number_are_refused(meshes: Any):
    with pytest.raises(ParameterError, match=r"meshes must be a number of ranks from 1 on"):
        make(meshes, linear_tanh(2))


def test_arguments_that_there_are_not_are_refused():
    with pytest.raises(TypeError, match="takes no argument 'los_fn'; for the runtime's Pipeline"):
        make(2, linear_tanh(2), los_fn=mse)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "stages must be a list of one or more"),
        ([nn.Linear(2, 2), 3], "stage 1 is a int; give a torch.nn.Module"),
        ([[nn.Linear(2, 2)] * 2], "stage 0 is a list of 2"),
        (["build"], "give the dotted path"),
    ],
)
def test_stages_of_another_kind_are_refused(stages: list, message: str):
    with pytest.raises(ParameterError, match=message):
        make(1, stages)


@pytest.mark.parametrize(("batch", "microbatch"), [(8, 3), (0, 1), (8, 0), (8, 2.0)])
def test_sizes_that_do_not_fit_are_refused(batch: int, microbatch: int):
    with pytest.raises(ParameterError, match="size must be a"):
        PipelineParallelism(
            2, linear_tanh(2), schedule="1f1b", batch_size=batch, microbatch_size=microbatch
        )


def test_rows_beyond_the_batch_size_are_refused():
    with make(2, linear_tanh(2)) as pp:
        with pytest.raises(ParameterError, match="the batch has 9 rows, and batch_size is 8"):
            pp.run(torch.randn(9, WIDTH), torch.randn(9, WIDTH))
        pp.run(*data())


def test_fewer_rows_are_weighed_by_their_share():
    modules = linear_tanh(2)
    x, y = torch.randn(5, WIDTH), torch.randn(5, WIDTH)
    with make(2, modules) as pp:
        assert_same(pp.run(x, y), mse(apply(modules, x), y), exact=False, what="loss")


def sequential(*seeds: int) -> nn.Sequential:
    return nn.Sequential(
        *(part for seed in seeds for part in linear_tanh(1, seed=seed)[0].children())
    )


def test_state_goes_in_and_out_under_the_unsplit_models_names():
    whole = sequential(0, 1)
    with make(2, [whole[:2], whole[2:]], names=None) as pp:
        assert pp.state_dict().keys() == whole.state_dict().keys()
        other = sequential(2, 3)
        pp.load_state_dict(other.state_dict())
        copy = deepcopy(whole)
        nn.init.zeros_(copy.get_parameter("0.weight"))
        pp.copy_params_to_new_model(copy)
        for found in (pp.state_dict(), copy.state_dict()):
            assert all(torch.equal(found[name], v) for name, v in other.state_dict().items())


def test_parameters_go_to_a_list_of_modules():
    modules, copies = linear_tanh(2), linear_tanh(2, seed=5)
    with make(2, modules, names=None) as pp:
        pp.copy_params_to_new_model(copies)
        assert torch.equal(*(m[1].get_parameter("0.weight") for m in (copies, modules)))
        with pytest.raises(ParameterError, match="two stages have different tensors of the name"):
            pp.state_dict()
        with pytest.raises(ParameterError, match="1 modules, and the pipeline 2 stages"):
            pp.copy_params_to_new_model(copies[:1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("stages.0.0.bias"), "the state has no stages.0.0.bias"),
        (lambda s: s.update(extra=s["stages.0.0.bias"]), "no stage has extra"),
        (lambda s: s.update({"stages.0.0.bias": torch.zeros(3)}), r"has the shape \(8,\) here"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change, message: str):
    with make(2, linear_tanh(2)) as pp:
        before = pp.state_dict()
        state = {name: torch.zeros_like(value) for name, value in before.items()}
        change(state)
        with pytest.raises(ParameterError, match=message):
            pp.load_state_dict(state)
        assert all(torch.equal(before[name], v) for name, v in pp.state_dict().items())


def test_gradients_are_clipped_over_the_whole_pipeline():
    modules, (x, y) = linear_tanh(2), data()
    whole = deepcopy(nn.Sequential(*modules))
    for module, found in zip(whole, wanted(modules, x, y).gradients, strict=True):
        for name, parameter in module.named_parameters():
            parameter.grad = found[name]
    norm = nn.utils.clip_grad_norm_(whole.parameters(), 0.01)
    with make(2, modules) as pp:
        pp.run(x, y)
        assert torch.allclose(pp.clip_grad_norm(0.01), norm)
        found = pp.gradients(["stages.1.0.weight"])
    assert found.keys() == {"stages.1.0.weight"}
    clipped = whole.get_parameter("1.0.weight").grad
    assert_same(found["stages.1.0.weight"], clipped, exact=False, what="gradient")


@pytest.mark.parametrize("family", ["1f1b", "zb_h1"])
def test_what_watched_stages_give_is_kept(family: str):
    modules, (x, y) = linear_tanh(2), data()
    parts = [part.clone().requires_grad_() for part in x.tensor_split(MICROBATCHES)]
    middles = [modules[0](part) for part in parts]
    for middle, target in zip(middles, y.tensor_split(MICROBATCHES), strict=True):
        middle.retain_grad()
        (mse(modules[1](middle), target) / MICROBATCHES).backward()
    nn.Sequential(*modules).zero_grad()
    with make(2, modules, schedule=family) as pp:
        with pytest.raises(ParameterError, match=r"nothing was kept of stage 0: call watch\(0\)"):
            pp.activations(0)
        with pytest.raises(ParameterError, match=r"there is no stage 2; they are 0..1"):
            pp.activations(2)
        pp.watch(0)
        for _ in range(2):
            pp.zero_grad()
            pp.run(x, y)
        assert all(map(torch.equal, pp.activations(0), middles))
        assert all(map(torch.equal, pp.activation_gradients(0), [m.grad for m in middles]))
        pp.watch()
        pp.run(x, y)
        with pytest.raises(ParameterError, match="nothing was kept"):
            pp.activations(0)


def halve(stage: HostedStage, name: str) -> float:
    assert stage.optimizer is not None
    (group,) = stage.optimizer.param_groups
    group[name] /= 2
    return float(stage.index + group[name])


def test_a_function_is_called_for_each_stage_where_it_lives():
    with make(2, linear_tanh(4), schedule="interleaved_1f1b", optimizers=sgd) as pp:
        assert pp.each_stage(halve, "lr") == [0.05, 1.05, 2.05, 3.05]


def test_optimizers_may_differ_from_stage_to_stage():
    with make(2, linear_tanh(2)) as pp:
        pp.set_optimizers([partial(torch.optim.AdamW, lr=1.0), sgd])
        assert pp.each_stage(optimizer_name) == ["AdamW", "SGD"]
        with pytest.raises(ParameterError, match="1 optimizers for 2 stages"):
            pp.set_optimizers([sgd])
        with pytest.raises(ParameterError, match="the optimizer of stage 0 is a list"):
            pp.set_optimizers(cast(Any, list))


def optimizer_name(stage: HostedStage) -> str:
    return type(stage.optimizer).__name__


def test_a_parameter_that_stages_share_is_stepped_once():
    shared = nn.Linear(WIDTH, WIDTH)
    modules, (x, y) = [nn.Sequential(shared), nn.Sequential(shared)], data()
    before = shared.weight.detach().clone()
    with make(1, modules, schedule="looped_bfs", names=None) as pp:
        pp.set_optimizers(partial(torch.optim.SGD, lr=0.1))
        pp.run(x, y)
        pp.step()
        gradient = pp.gradients()["0.weight"]
        assert gradient is not None
        wanted_weight = before - 0.1 * gradient
        torch.testing.assert_close(pp.state_dict()["0.weight"], wanted_weight)


def test_checkpoints_are_those_of_the_runtime(tmp_path: Path):
    modules, (x, y) = linear_tanh(2), data()
    with make(2, modules, optimizers=sgd) as pp:
        pp.run(x, y)
        pp.step()
        pp.save_checkpoint(tmp_path / "one", extra={"step": 1})
        state = pp.state_dict()
    with make(1, linear_tanh(2, seed=9), schedule="looped_bfs", optimizers=sgd) as pp:
        assert pp.load_checkpoint(tmp_path / "one") == {"step": 1}
        assert all(torch.equal(state[name], value) for name, value in pp.state_dict().items())


def test_profiles_hold_all_ranks():
    with make(2, linear_tanh(2), profile=True) as pp:
        pp.run(*data())
        assert len(pp.profile().steps[0]) == 2


def test_a_users_exception_comes_as_it_is():
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("boom")

    with make(2, [nn.Linear(WIDTH, WIDTH), Broken()]) as pp:
        with pytest.raises(KeyError, match="boom") as caught:
            pp.run(*data())
        assert caught.value.__notes__ == ["rank 1, stage 1, action 1F0"]


def test_after_an_exception_it_goes_on():
    modules, (x, y) = linear_tanh(2), data()
    calls: list[None] = []

    def fail(*_: object) -> None:
        calls.append(None)
        if len(calls) == 3:
            raise KeyError("boom")

    handle = modules[1].register_forward_hook(fail)
    with make(2, modules) as pp:
        with pytest.raises(KeyError):
            pp.run(x, y)
        handle.remove()
        pp.zero_grad()
        pp.run(x, y)
        assert_gradients(modules, wanted(modules, x, y).gradients, pp.schedule)


def test_a_closed_one_says_so():
    pp = make(2, linear_tanh(2))
    pp.close()
    pp.close()
    with pytest.raises(fb.ExecutionError, match="cannot be used any more: it was closed"):
        pp.run(*data())
