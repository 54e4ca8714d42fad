"""The decision which gradients wait, and what it leans on in torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.runtime.backward.cases import Case, freeze, mlp
from tests.runtime.backward.compare import assert_same, run_split, run_whole
from tests.runtime.backward.layers import FIRST
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from fullbore.runtime.backward import SplitBackward, graph
from fullbore.runtime.backward.engine import run, runs_nodes_alone
from fullbore.runtime.backward.graph import make_plan
from fullbore.runtime.backward.jobs import Job, group, leaves_out_of_order
from fullbore.runtime.backward.products import PRODUCTS

pytestmark = pytest.mark.torch


def test_this_torch_runs_a_node_without_computing_what_nobody_asks_for():
    assert runs_nodes_alone()
    with torch.no_grad():
        assert runs_nodes_alone()
    with torch.inference_mode():
        assert runs_nodes_alone()


@pytest.mark.parametrize(
    "case",
    [case for case in FIRST.values() if case.waits],
    ids=[n for n in FIRST if FIRST[n].waits],
)
def test_with_a_torch_that_does_not_the_first_layer_is_immediate(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(graph, "NODES_RUN_ALONE", False)
    everything = Case(case.build, case.inputs, waits=0, early="*", raw=case.raw)
    assert_same(run_split(everything), run_whole(everything))


def test_with_a_torch_that_does_not_a_fed_stage_is_immediate(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(graph, "NODES_RUN_ALONE", False)
    module, batch = nn.Sequential(nn.LayerNorm(8), mlp()), torch.ones(4, 8)
    y = module(batch)
    split = SplitBackward([y], [], fed=True)
    split.input_backward([torch.ones_like(y)])
    assert split.deferred == 0
    assert all(weight.grad is not None for weight in module.parameters())


def plan_of(y: Tensor, *inputs: Tensor) -> graph.Plan:
    return make_plan([y.grad_fn], inputs)


def test_i_aims_at_inputs_immediate_parameters_and_first_products():
    module, x = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), torch.ones(4, 8)
    plan = plan_of(module(x))
    assert plan.targets is not None
    tensors = [target for target in plan.targets if isinstance(target, Tensor)]
    (edge,) = [target for target in plan.targets if isinstance(target, GradientEdge)]
    assert set(tensors) == set(module[1].parameters())
    assert type(edge.node).__name__ == "AddmmBackward0"

    x.requires_grad_()
    plan = plan_of(module(x), x)
    assert plan.targets is not None
    assert set(plan.targets) == {x, *module[1].parameters()}


def test_an_unknown_end_of_the_graph_gets_a_full_backward():
    end: Any = SimpleNamespace(next_functions=())
    assert make_plan([Known(end)], ()).targets is None


class Known:
    """Stands for a node with one operand."""

    def __init__(self, below: Any) -> None:
        self.next_functions = ((Hashable(below), 0),)


class Hashable:
    def __init__(self, like: Any) -> None:
        self.next_functions = like.next_functions


def job(*operands: tuple[object, tuple[str, ...]]) -> Job:
    """A job whose operands have these edges and lead to these parameters."""
    edges: list[Any] = [(edge, 0) for edge, _ in operands]
    leaves: list[Any] = [leaves for _, leaves in operands]
    return Job(PRODUCTS["MmBackward0"], list(range(len(operands))), edges, leaves)


def test_jobs_that_share_parameters_are_grouped_in_order():
    jobs = [
        job(("t1", ("a",))),
        job(("t2", ("b",)), ("t3", ("c",))),
        job(("t4", ("d",))),
        job(("t5", ("c", "e"))),
        job(("t6", ("e", "a"))),
    ]
    a, bc, d, ce, ea = jobs
    assert group(jobs) == [[a, bc, ce, ea], [d]]
    assert group([d]) == [[d]]
    assert group([]) == []


def node(*below: object) -> Any:
    return SimpleHashable(tuple((child, 0) for child in below))


class SimpleHashable:
    def __init__(self, next_functions: tuple[tuple[object, int], ...]) -> None:
        self.next_functions = next_functions


def test_three_contributions_by_different_ways_are_out_of_order():
    weight = node()
    turned = [node(weight) for _ in range(3)]
    direct, by_turn = job((weight, ("w",))), [job((t, ("w",))) for t in turned]
    assert leaves_out_of_order([direct, direct, direct]) == set()
    assert leaves_out_of_order(by_turn) == set()
    assert leaves_out_of_order([direct, by_turn[0]]) == set()
    assert leaves_out_of_order([direct, *by_turn[:2]]) == {"w"}
    assert leaves_out_of_order([direct, direct, by_turn[0]]) == {"w"}


def test_the_engine_sums_what_a_broadcast_operand_is_given():
    weight = torch.ones(8, requires_grad=True)
    y = weight.expand(4, 8)
    assert y.grad_fn is not None
    end = weight.view_as(weight).grad_fn
    assert end is not None
    given = torch.randn(4, 8)
    run([GradientEdge(end, 0)], [given])
    assert weight.grad is not None
    assert torch.equal(weight.grad, given.sum(0))


def test_frozen_layers_below_the_first_trained_one_are_not_looked_at():
    module = freeze(mlp(), "0.")
    y = module(torch.ones(4, 8))
    plan = plan_of(y)
    assert plan.targets is not None
    assert len(plan.targets) == 1
