"""Field cases C07-C09, C13, C14, C29 and C32: on the local engine, through shared memory and over
gloo, every one compared with the plain loop."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from tests.field.scenarios import (
    COUNT,
    Call,
    Runner,
    Scenario,
    Take,
    batch,
    check,
    local,
    plan_of,
    split_call,
)
from tests.reference import WIDTH, linear_tanh, mse
from torch import Tensor, nn

import fullbore as fb
from fullbore.runtime import Replicate, Split

pytestmark = [pytest.mark.torch, pytest.mark.gloo]


families = pytest.mark.parametrize(
    "family", ["1f1b", "interleaved_zero_bubble", "zbv_zero_bubble", "dualpipev"]
)


def uneven(family: str) -> Scenario:
    plan = plan_of(family)
    return Scenario(plan, linear_tanh(plan.num_stages), [split_call(*batch(7, WIDTH), COUNT)])


@pytest.mark.parametrize("family", ["gpipe", "zbv_zero_bubble"])
def test_c07_uneven_microbatches_weigh_their_rows(runner: Runner, family: str) -> None:
    check(runner, uneven, family)


def test_c07_the_gradient_is_that_of_the_mean_over_the_batch() -> None:
    (outcome,) = local(uneven, "gpipe")
    modules, (x, y) = linear_tanh(2), batch(7, WIDTH)
    loss = mse(nn.Sequential(*modules)(x), y)
    loss.backward()
    torch.testing.assert_close(outcome.steps[0].loss, loss.detach())
    for stage, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(outcome.gradients[stage][name], parameter.grad)


def changing(family: str) -> Scenario:
    plan = plan_of(family)
    shapes = [(8, 6, WIDTH), (8, 3, WIDTH), (8, 6, WIDTH), (4, 6, WIDTH)]
    calls = [split_call(*batch(*shape), COUNT) for shape in shapes]
    return Scenario(plan, linear_tanh(plan.num_stages), calls)


@families
def test_c08_lengths_and_batches_change_between_steps(runner: Runner, family: str) -> None:
    check(runner, changing, family)


def presplit(family: str) -> Scenario:
    plan = plan_of(family)
    pairs = [batch(2, length, WIDTH, seed=length) for length in (6, 3, 1, 5)]
    xs, ys = zip(*pairs, strict=True)
    given = {"arg_mbs": [(x,) for x in xs], "target_mbs": list(ys)}
    return Scenario(plan, linear_tanh(plan.num_stages), [Call((), given, [(x,) for x in xs], ys)])


@families
def test_c09_lengths_differ_between_microbatches(runner: Runner, family: str) -> None:
    check(runner, presplit, family)


def tuple_loss(output: Tensor, target: Any) -> Tensor:
    scale, wanted = target
    return mse(scale.unsqueeze(1) * output, scale.unsqueeze(1) * wanted)


def dict_loss(output: Tensor, target: Any) -> Tensor:
    return tuple_loss(output, (target["scale"], target["wanted"]))


def structured(kind: str, family: str) -> Scenario:
    plan, (x, y) = plan_of(family), batch(8, WIDTH)
    scale = torch.rand(8)
    pieces = list(zip(scale.tensor_split(COUNT), y.tensor_split(COUNT), strict=True))
    target: Any = (scale, y)
    targets: list[Any] = [*pieces]
    if kind == "dict":
        target = {"scale": scale, "wanted": y}
        targets = [{"scale": s, "wanted": w} for s, w in pieces]
    micro = [(part,) for part in x.tensor_split(COUNT)]
    return Scenario(
        plan,
        linear_tanh(plan.num_stages),
        [Call((x,), {"target": target}, micro, targets)],
        loss_fn=tuple_loss if kind == "tuple" else dict_loss,
    )


@pytest.mark.parametrize("kind", ["tuple", "dict"])
@pytest.mark.parametrize("family", ["1f1b", "zbv_zero_bubble"])
def test_c13_targets_are_pytrees(runner: Runner, kind: str, family: str) -> None:
    check(runner, partial(structured, kind), family)


def transposed(family: str) -> Scenario:
    """Time first, batch second: both are cut along dim 1."""
    plan, (x, y) = plan_of(family), batch(3, 8, WIDTH)
    micro = [(part,) for part in x.tensor_split(COUNT, 1)]
    return Scenario(
        plan,
        linear_tanh(plan.num_stages),
        [Call((x,), {"target": y}, micro, y.tensor_split(COUNT, 1))],
        options={"args_spec": (Split(1),), "target_spec": Split(1)},
    )


@families
def test_c13_inputs_are_split_on_dim_1_with_a_spec(runner: Runner, family: str) -> None:
    check(runner, transposed, family)


class Ragged(NamedTuple):
    offsets: Tensor
    longest: int


def take_kwargs(h: Tensor, **kwargs: Any) -> Tensor:
    ragged = kwargs["ragged"]
    assert type(ragged) is Ragged
    assert ragged.offsets.tolist() == [0, 3, 5, 7, 8]
    assert ragged.longest == 3
    assert kwargs["per_head"].shape == (4,)
    assert kwargs["nothing"] is None
    assert kwargs["mode"] == "causal"
    scale, rows = kwargs["scale"], kwargs["rows"]
    assert (scale.shape, rows.shape) == ((), (2, 1))
    return torch.addcmul(rows + kwargs["per_head"].sum(), h, scale)


def keywords(family: str) -> Scenario:
    plan, (x, y) = plan_of(family), batch(8, WIDTH)
    torch.manual_seed(0)
    modules: list[nn.Module] = [Take(take_kwargs) for _ in range(plan.num_stages)]
    same = {
        "ragged": Ragged(torch.tensor([0, 3, 5, 7, 8]), 3),
        "per_head": torch.rand(4),
        "scale": torch.tensor(0.5),
        "nothing": None,
        "mode": "causal",
    }
    rows = torch.rand(8, 1)
    call = split_call(x, y, COUNT, kwargs=[{**same, "rows": r} for r in rows.tensor_split(COUNT)])
    call.given.update(same, rows=rows)
    return Scenario(plan, modules, [call])


@families
def test_c14_keyword_values_that_are_no_batch_are_replicated(runner: Runner, family: str) -> None:
    check(runner, keywords, family)


def add_table(h: Tensor, table: Tensor) -> Tensor:
    assert table.shape == (8, WIDTH)
    return h + table.sum()


def table_keyword(family: str) -> Scenario:
    plan, (x, y) = plan_of(family), batch(8, WIDTH)
    torch.manual_seed(0)
    modules: list[nn.Module] = [Take(add_table) for _ in range(plan.num_stages)]
    table = torch.rand(8, WIDTH)
    call = split_call(x, y, COUNT, kwargs=[{"table": table}] * COUNT)
    call.given.update(table=table)
    return Scenario(plan, modules, [call], options={"kwargs_spec": {"table": Replicate()}})


@families
def test_c14_a_spec_replicates_what_has_the_batchs_size(runner: Runner, family: str) -> None:
    check(runner, table_keyword, family)


def disordered(_: str) -> Scenario:
    """The last microbatch first, on every stage."""
    text = "0F3,0F1,0F0,0F2,0B1,0B3,0B2,0B0\n1F3,1F1,1B1,1F0,1B3,1F2,1B2,1B0\n"
    plan = fb.loads(text, format="csv")
    return Scenario(plan, linear_tanh(2), [split_call(*batch(7, WIDTH), COUNT)])


def test_c29_losses_belong_to_their_microbatch_whatever_the_order(runner: Runner) -> None:
    check(runner, disordered, "")


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.embedding(ids)
        return out


def integers(family: str) -> Scenario:
    plan = plan_of(family)
    ids, target = torch.arange(24).reshape(8, 3) % 11, batch(8, 3, WIDTH)[1]
    torch.manual_seed(0)
    modules = [Tokens(), *linear_tanh(plan.num_stages - 1)]
    return Scenario(plan, modules, [split_call(ids, target, COUNT)])


@families
def test_c32_integer_inputs(runner: Runner, family: str) -> None:
    check(runner, integers, family)


def bare(where: str, family: str) -> Scenario:
    plan = plan_of(family)
    modules = linear_tanh(plan.num_stages)
    modules[{"first": 0, "middle": plan.num_stages // 2, "last": -1}[where]] = nn.Tanh()
    return Scenario(plan, modules, [split_call(*batch(8, WIDTH), COUNT)])


@families
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_c32_a_stage_without_parameters(runner: Runner, where: str, family: str) -> None:
    check(runner, partial(bare, where), family)
