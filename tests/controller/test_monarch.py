"""The controller on Monarch's actors: the same numbers as in one process."""

import asyncio
import gc
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.controller.cases import MICROBATCHES, build_stage, by_stage, data, make, sgd, wanted
from tests.reference import WIDTH, assert_same, linear_tanh, mse
from torch import Tensor, nn

from fullbore.controller import Factory, HostedStage, PipelineParallelism
from fullbore.controller.monarch import MonarchEngine
from fullbore.errors import ExecutionError, ParameterError, TransportTimeout
from fullbore.runtime import Replicate
from fullbore.schedules import FAMILIES

pytestmark = [pytest.mark.torch, pytest.mark.monarch]

TRAINING = [name for name in FAMILIES if name != "forward_only"]


class Unlucky(ValueError):
    """An exception of the user's."""


class Failing(nn.Module):
    """Raises in one of its calls."""

    def __init__(self, error: BaseException, *, call: int = 3, backward: bool = False) -> None:
        super().__init__()
        self.error, self.left, self.backward = error, call, backward
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if not self.backward:
            self.count()
        out: Tensor = self.inner(x)
        if self.backward and out.requires_grad:
            out.register_hook(lambda _: self.count())
        return out

    def count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error


def on(procs: Any, num_ranks: int, stages: Any, **options: Any) -> PipelineParallelism:
    mesh = procs.slice(ranks=slice(0, num_ranks))
    return make(mesh, stages, **{"engine": "monarch", **options})


def results(pp: PipelineParallelism) -> tuple[Any, Any]:
    with pp:
        pp.run(*data())
        assert pp.last is not None
        return pp.last.losses, pp.gradients()


@pytest.mark.parametrize("family", TRAINING)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_it_equals_the_local_engine_bit_for_bit(procs: Any, family: str, num_ranks: int):
    modules = linear_tanh(num_ranks * FAMILIES[family].default_stages_per_rank)
    local = results(make(num_ranks, deepcopy(modules), schedule=family))
    losses, gradients = results(on(procs, num_ranks, modules, schedule=family))
    assert all(map(torch.equal, losses, local[0]))
    assert gradients.keys() == local[1].keys()
    for name, gradient in gradients.items():
        assert_same(gradient, local[1][name], exact=True, what=name)
    assert all(map(torch.equal, losses, wanted(modules, *data()).losses))


def test_training_equals_that_of_the_local_engine(procs: Any, tmp_path: Path):
    stages = [Factory("tests.controller.cases.build_stage", seed) for seed in range(4)]
    states = []
    for number, engine in enumerate(("local", "monarch")):
        options: dict[str, Any] = {"schedule": "zbv", "optimizers": sgd, "profile": True}
        meshes = procs.slice(ranks=slice(0, 2)) if engine == "monarch" else 2
        with make(meshes, stages, engine=engine, **options) as pp:
            for seed in range(3):
                pp.zero_grad()
                pp.run(*data(seed))
                pp.clip_grad_norm(0.1)
                pp.step()
            states.append(pp.state_dict())
            assert_same(pp.eval(*data()).loss, pp.last.loss, exact=True, what="loss")  # type: ignore[union-attr]
            assert len(pp.profile().steps[0]) == 2
            pp.save_checkpoint(tmp_path / str(number), extra={"engine": engine})
            pp.load_state_dict({name: torch.ones_like(v) for name, v in states[0].items()})
            assert torch.equal(pp.get_parameter("stages.3.0.bias"), torch.ones(WIDTH))
            assert pp.load_checkpoint(tmp_path / "0") == {"engine": "local"}
            assert torch.equal(pp.get_parameter("stages.3.0.bias"), states[0]["stages.3.0.bias"])
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_the_callers_modules_stay_as_they_are_until_they_are_asked_for(procs: Any):
    modules = linear_tanh(2)
    copies = deepcopy(modules)
    with on(procs, 2, modules, optimizers=sgd) as pp:
        pp.run(*data())
        pp.step()
        state = pp.state_dict()
        assert torch.equal(
            modules[0].get_parameter("0.weight"), copies[0].get_parameter("0.weight")
        )
        pp.copy_params_to_new_model(modules)
        assert torch.equal(modules[0].get_parameter("0.weight"), state["stages.0.0.weight"])


def test_what_stages_give_and_functions_of_the_test_reach_them(procs: Any):
    factor = 3

    def scaled(stage: HostedStage, by: int) -> tuple[int, int]:
        return os.getpid(), stage.index * by * factor

    with on(procs, 2, linear_tanh(2)) as pp:
        pp.watch(0)
        pp.run(*data())
        kept = pp.activations(0)
        assert len(kept) == len(pp.activation_gradients(0)) == MICROBATCHES
        assert torch.equal(kept[3], build_stage(0)(data()[0][6:]))
        pids, numbers = zip(*pp.each_stage(scaled, 2), strict=True)
        assert numbers == (0, 6)
        assert len({*pids, os.getpid()}) == 3


def test_a_process_group_carries_the_messages_as_well(procs: Any):
    modules = linear_tanh(2)
    local = results(make(2, deepcopy(modules)))
    losses, gradients = results(on(procs, 2, modules, engine=MonarchEngine(transport="p2p")))
    assert all(map(torch.equal, losses, local[0]))
    assert all(torch.equal(value, local[1][name]) for name, value in gradients.items())


def open_files(_: object = None) -> int:
    gc.collect()  # what was given up may still be in a cycle
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.mark.parametrize("transport", ["shm", "p2p"])
def test_a_closed_pipeline_leaves_no_files_open(procs: Any, transport: Any):
    counts = []
    for _ in range(3):
        with on(procs, 2, linear_tanh(2), engine=MonarchEngine(transport=transport)) as pp:
            pp.run(*data())
            counts.append([*pp.each_stage(open_files), open_files()])
    assert counts[1] == counts[2]


def test_a_parameter_that_stages_of_several_ranks_share_is_one(procs: Any):
    shared = nn.Linear(WIDTH, WIDTH)
    modules = [nn.Sequential(shared), nn.Sequential(nn.Linear(WIDTH, WIDTH)), nn.Sequential(shared)]
    x, y = data()
    reference = wanted(modules, x, y)
    with on(procs, 3, modules, optimizers=sgd) as pp:
        pp.run(x, y)
        found = pp.gradients()
        pp.step()
        state = pp.state_dict()
    for name, gradient in found.items():
        stage = int(name.split(".")[1])
        wanted_one = reference.gradients[stage][name.split(".", 2)[2]]
        assert_same(gradient, wanted_one, exact=False, what=name)
    assert torch.equal(state["stages.0.0.weight"], state["stages.2.0.weight"])


def test_an_input_that_asks_for_a_gradient_is_refused(procs: Any):
    x, y = data()
    with on(procs, 2, linear_tanh(2)) as pp:
        with pytest.raises(ParameterError, match="asks for a gradient, which does not come back"):
            pp.run(x.requires_grad_(), y)
        pp.run(x.detach(), y)


def test_processes_begin_with_the_seed_of_the_script(procs: Any):
    found = []
    for seed in (11, 11, 12):
        torch.manual_seed(seed)
        with on(procs, 2, [Factory(nn.Linear, WIDTH, WIDTH)] * 2) as pp:
            drawn = pp.each_stage(lambda _: (random.random(), torch.rand(1).item()))
            found.append((drawn, pp.get_parameter(by_stage(0, "bias")).tolist()))
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_meshes_may_be_a_list(procs: Any):
    meshes = [procs.slice(ranks=rank) for rank in (2, 1)]
    with make(meshes, linear_tanh(2), engine="monarch") as pp:
        assert_same(pp.run(*data()), make(2, linear_tanh(2)).run(*data()), exact=True, what="loss")


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_users_exception_comes_as_it_is_and_training_goes_on(
    procs: Any, rank: int, backward: bool
):
    stages: list[nn.Module] = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]
    # In the last call: the other rank may have finished the step.
    stages[rank] = Failing(Unlucky("boom", 3), call=MICROBATCHES, backward=backward)
    with on(procs, 2, stages) as pp:
        with pytest.raises(Unlucky, match="boom") as caught:
            pp.run(*data())
        assert caught.value.args == ("boom", 3)
        kind = "B" if backward else "F"
        assert caught.value.__notes__ == [f"rank {rank}, stage {rank}, action {rank}{kind}3"]
        assert "in forward" in str(caught.value.__cause__) or backward
        pp.zero_grad()
        pp.run(*data(2))
        found = pp.gradients()
        names = pp.state_dict().keys()
    twin = make(2, stages)
    stages[rank].left = 0  # type: ignore[assignment]
    twin.run(*data(2))
    assert names == found.keys()
    for name, gradient in twin.gradients().items():
        assert_same(found[name], gradient, exact=True, what=name)


class Slow(nn.Module):
    """Sleeps in its first call."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.inner = seconds, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        self.seconds = 0.0
        out: Tensor = self.inner(x)
        return out


def assert_goes_on(pp: PipelineParallelism, stages: Sequence[nn.Module]) -> None:
    """A step gives the numbers of one that nothing went before."""
    pp.zero_grad()
    pp.run(*data(2))
    found = pp.gradients()
    with make(2, stages) as twin:
        twin.run(*data(2))
        for name, gradient in twin.gradients().items():
            assert_same(found[name], gradient, exact=True, what=name)


def test_a_stall_is_told_and_training_goes_on(procs: Any):
    stages = [nn.Linear(WIDTH, WIDTH), Slow(2.5)]
    with on(procs, 2, stages, engine=MonarchEngine(timeout=1.0)) as pp:
        with pytest.raises(TransportTimeout, match="for rank 1, which is at 1F0"):
            pp.run(*data())
        stages[1].seconds = 0.0  # type: ignore[assignment]
        assert_goes_on(pp, stages)


class Unreadable:
    """Can be sent, and not be made again."""

    def __reduce__(self) -> Any:
        return refuse, ()


def refuse() -> None:
    raise OSError("cannot be read")


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_a_batch_that_one_rank_cannot_read_holds_up_no_other(procs: Any, schedule: str):
    modules = linear_tanh(2 if schedule == "1f1b" else 4)
    options = {"schedule": schedule, "engine": MonarchEngine(timeout=5.0)}
    x, y = data()
    target: dict[str, Any] = {
        "target_spec": (None, Replicate()),
        "loss_fn": lambda out, target: mse(out, target[0]),
    }
    mean = torch.stack(wanted(modules, x, y).losses).mean()
    with on(procs, 2, modules, **options, **target) as pp:
        for call in (pp.run, pp.eval, pp.start):
            with pytest.raises(OSError, match="cannot be read"):
                call(x, (y, Unreadable()))
            pp.zero_grad()
            assert_same(pp.run(x, (y, 0)), mean, exact=False, what="loss")


def test_after_an_interrupt_it_goes_on(procs: Any):
    stages = [nn.Linear(WIDTH, WIDTH), Slow(1.0)]
    with on(procs, 2, stages) as pp:
        pp.initialize()
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            pp.run(*data())
        stages[1].seconds = 0.0  # type: ignore[assignment]
        assert_goes_on(pp, stages)


def arm(stage: HostedStage, which: int) -> None:
    """Let one stage fail in its last call of the next step."""
    assert isinstance(stage.module, Failing)
    stage.module.left = MICROBATCHES if stage.index == which else 0


def test_one_rank_after_another_may_fail(procs: Any):
    stages = [Failing(Unlucky("boom"), backward=index % 2 == 0) for index in range(4)]
    with on(procs, 4, stages) as pp:
        for which in (0, 3, 1, 2, 0):
            pp.each_stage(arm, which)
            with pytest.raises(Unlucky) as caught:
                pp.run(*data())
            assert f"rank {which}, stage {which}" in caught.value.__notes__[0]
        pp.each_stage(arm, -1)
        pp.zero_grad()
        pp.run(*data())
        found = pp.gradients()
    with make(4, stages) as twin:
        twin.each_stage(arm, -1)
        twin.run(*data())
        for name, gradient in twin.gradients().items():
            assert_same(found[name], gradient, exact=True, what=name)


def test_it_works_where_an_event_loop_runs(procs: Any):
    async def train() -> Any:
        return results(on(procs, 2, linear_tanh(2)))

    losses, gradients = asyncio.run(train())
    local = results(make(2, linear_tanh(2)))
    assert all(map(torch.equal, losses, local[0]))
    assert gradients.keys() == local[1].keys()


def test_processes_that_were_given_cannot_be_started_anew(procs: Any):
    with pytest.raises(ParameterError, match="recover=: the processes of a mesh that was given"):
        on(procs, 2, linear_tanh(2), recover=True)


def test_an_engine_has_one_pipeline_at_a_time(procs: Any):
    engine = MonarchEngine()
    with on(procs, 2, linear_tanh(2), engine=engine) as pp:
        pp.initialize()
        with pytest.raises(ParameterError, match="this engine has a pipeline already"):
            on(procs, 2, linear_tanh(2), engine=engine)
        pp.run(*data())


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyboardInterrupt("stop"), "KeyboardInterrupt: stop"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_what_would_end_this_program_is_told_as_an_error(procs: Any, error: Any, message: str):
    stages = [nn.Linear(WIDTH, WIDTH), Failing(error)]
    with on(procs, 2, stages) as pp, pytest.raises(ExecutionError, match=message):
        pp.run(*data())


def test_an_exception_that_cannot_be_sent_is_told_as_text(procs: Any):
    class Stubborn(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")

    def fail(stage: HostedStage) -> None:
        raise Stubborn(1, 2)

    with on(procs, 2, linear_tanh(2)) as pp:
        with pytest.raises(ExecutionError, match="Stubborn: 1 and 2"):
            pp.each_stage(fail)
        pp.run(*data())


def test_wrong_shapes_are_told_with_their_place(procs: Any):
    stages = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH + 1, WIDTH)]
    with on(procs, 2, stages) as pp, pytest.raises(RuntimeError, match="shapes cannot") as caught:
        pp.run(*data())
    assert caught.value.__notes__ == ["rank 1, stage 1, action 1F0"]


def test_arguments_that_cannot_be_sent_are_named(procs: Any):
    with on(procs, 2, linear_tanh(2)) as pp:
        with pytest.raises(ParameterError, match="each_stage: an argument cannot be sent"):
            pp.each_stage(print, threading.Lock())
        pp.run(*data())


def test_a_stage_that_cannot_be_built_is_told(procs: Any):
    stages = [nn.Linear(WIDTH, WIDTH), Factory("nowhere.at_all")]
    with on(procs, 2, stages) as pp, pytest.raises(ParameterError, match="No module named"):
        pp.initialize()
