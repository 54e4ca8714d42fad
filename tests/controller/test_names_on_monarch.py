"""Scripts that are written for Monarch, on its actors; and its objects where they are given."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from monarch import OpaqueRef, Stream
from monarch.common import opaque_ref
from monarch.common.device_mesh import DeviceMesh
from monarch.opaque_module import OpaqueModule
from monarch.parallel.pipelining.schedule_ir import _Action
from tests.controller import monarch_script as script
from tests.controller.cases import data, make, wanted
from tests.controller.test_names import assert_trained
from tests.reference import assert_gradients, assert_same, linear_tanh
from torch import nn

import fullbore as fb
from fullbore.controller import PipelineParallelism, build_optimizer_chunk, optimizer_zero_grad
from fullbore.errors import ParameterError
from fullbore.formats import format_action
from fullbore.ir import Schedule, executable_order

pytestmark = [pytest.mark.torch, pytest.mark.monarch]


def in_order(schedule: Schedule) -> list[fb.Action]:
    return [schedule.programs[rank][step] for rank, step in executable_order(schedule).steps]


def meshes_of(procs: Any) -> list[Any]:
    return [procs.slice(ranks=rank) for rank in range(2)]


@pytest.mark.parametrize("dispatch", ["step", "action"])
def test_a_script_trains_as_the_unpipelined_model_does(procs: Any, dispatch: str) -> None:
    options: dict[str, Any] = {"dispatch": dispatch}
    with script.make_pipeline(meshes_of(procs), 4, **options) as pipeline:
        assert_trained(script.train(pipeline))


def test_a_script_dispatches_the_schedule_or_its_actions(procs: Any) -> None:
    with script.make_pipeline(2, 4) as local:
        wanted_ran, wanted_loss = script.dispatch(local)
    with script.make_pipeline(meshes_of(procs), 4) as pipeline:
        ran, loss = script.dispatch(pipeline)
        assert ran == wanted_ran
        assert torch.equal(loss, wanted_loss)
        assert torch.equal(script.run_actions(pipeline, in_order(pipeline.schedule)), loss)


def test_actions_of_monarchs_are_run(procs: Any) -> None:
    """Also input gradients, weight gradients and batched pairs, which it does not run itself."""
    plan = fb.build("interleaved_zero_bubble", num_ranks=2, num_microbatches=4, stages_per_rank=2)
    schedule = fb.lower(plan, sink=True, batch=True)
    texts = [format_action(action, dialect="monarch") for action in in_order(schedule)]
    assert {"2B0", "2W0"} <= set(texts)
    modules, (x, y) = linear_tanh(4), data()
    reference = wanted(modules, x, y)
    with make(2, modules, schedule=schedule) as pp:
        pp.start(x, y)
        for text in texts:
            pp.run_action(_Action.from_str(text))
        assert_gradients(modules, reference.gradients, schedule)


def test_tensors_are_looked_at_where_they_are(procs: Any) -> None:
    modules, (x, y) = linear_tanh(2), data()
    with (
        make(2, linear_tanh(2)) as local,
        make(meshes_of(procs), modules) as pp,
        local.start(x, y) as here,
        pp.start(x, y) as there,
    ):
        for action in there:
            here.run(action)
            for leaf in action.leaves:
                stage, m = leaf.stage, leaf.microbatch
                if leaf.kind is fb.Kind.F:
                    assert torch.equal(there.input(stage, m)[0], here.input(stage, m)[0])
                    assert torch.equal(there.output(stage, m), here.output(stage, m))
                elif leaf.kind is fb.Kind.B:
                    found = zip(
                        (*there.output_gradients(stage, m), *there.input_gradients(stage, m)),
                        (*here.output_gradients(stage, m), *here.input_gradients(stage, m)),
                        strict=True,
                    )
                    for a, b in found:
                        assert_same(a, b, exact=True, what=str(action))
        assert torch.equal(there.finish(), here.finish())


def test_a_step_can_be_abandoned_and_an_error_ends_it(procs: Any) -> None:
    stages: list[nn.Module] = [*linear_tanh(1), Failing()]
    x, y = data()
    with make(meshes_of(procs), stages) as pp:
        with pp.start(x, y) as stepping:
            assert any(str(action) == "0SEND_F1" for action in stepping)
        with pp.start(x, y) as stepping, pytest.raises(KeyError, match="boom") as caught:
            list(stepping)
        assert caught.value.__notes__[0] == "rank 1, stage 1, action 1F2"
        pp.zero_grad()
        loss = pp.run(x, y)
        found = pp.gradients()
    stages[1].left = 0  # type: ignore[assignment] # this one is in this process
    with make(2, stages) as local:
        assert torch.equal(local.run(x, y), loss)
        for name, gradient in local.gradients().items():
            assert_same(found[name], gradient, exact=True, what=name)


class Failing(script.Chunk):
    """Raises in its fourth call."""

    left = 4

    def forward(self, input_tensor: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if self.left == 0:
            raise KeyError("boom")
        return super().forward(input_tensor)


def test_streams_of_monarchs_are_taken() -> None:
    streams: dict[str, Any] = {"compute_stream": Stream("compute"), "p2p_stream": Stream("p2p")}
    with make(2, linear_tanh(2), **streams) as pp:
        assert torch.isfinite(pp.run(*data()))


@pytest.mark.parametrize("kind", ["OpaqueRef", "OpaqueModule"])
def test_what_lives_in_the_tensor_engine_is_refused(kind: str) -> None:
    stage = OpaqueModule.__new__(OpaqueModule)
    if kind == "OpaqueRef":
        stage = OpaqueRef._create(torch.tensor(0))
    with pytest.raises(ParameterError, match=rf"an {kind} belongs .* give the module .*Factory"):
        make(2, [*linear_tanh(1), [stage]])
    with pytest.raises(ParameterError, match=f"an {kind} belongs"):
        build_optimizer_chunk(stage, 0.1)


def test_an_opaque_ref_of_this_process_is_what_it_stands_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opaque_ref, "_on_worker", True)
    modules, (x, y) = linear_tanh(2), data()
    reference = wanted(modules, x, y)
    with make(2, [[OpaqueRef(module)] for module in modules]) as pp:
        pp.run(x, y)
        assert_gradients(modules, reference.gradients, pp.schedule)
    optimizer_zero_grad(OpaqueRef(build_optimizer_chunk(OpaqueRef(modules[0]), 0.1)))
    assert modules[0].get_parameter("0.weight").grad is None


def test_a_device_mesh_is_refused_or_counted() -> None:
    mesh = DeviceMesh.__new__(DeviceMesh)
    mesh.ref = None  # nothing to be told of its end
    for engine in (None, "monarch"):
        with pytest.raises(ParameterError, match=r"a DeviceMesh belongs .* give the proc mesh"):
            make([mesh, mesh], linear_tanh(2), engine=engine)
    with make(cast(Any, [mesh, mesh]), linear_tanh(2), engine="local") as pp:
        assert isinstance(pp, PipelineParallelism)
        assert torch.isfinite(pp.run(*data()))
