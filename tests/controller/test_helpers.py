"""Monarch's worker functions, on the CPU, against the unpipelined model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.reference import WIDTH, gradients, linear_tanh, reference
from torch import Tensor, nn

from fullbore.controller.helpers import (
    add_sys_path_impl,
    asks_for_input_tensor,
    build_loss_list,
    build_module_chunk,
    build_optimizer_chunk,
    build_pp_loss_layer,
    get_loss_impl,
    get_parameter,
    optimizer_step,
    optimizer_zero_grad,
    run_backward_impl,
    run_forward_impl,
)
from fullbore.errors import ExecutionError, ParameterError

pytestmark = pytest.mark.torch


class Named(nn.Module):
    """A stage whose input has Monarch's name."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, input_tensor: Tensor) -> Tensor:
        return self.linear(input_tensor).tanh()  # type: ignore[no-any-return]


class NamedOnly(Named):
    """It can't be called in any other way."""

    def forward(self, scale: float = 2.0, *, input_tensor: Tensor) -> Tensor:  # type: ignore[override]
        return scale * super().forward(input_tensor)


class Gathering(nn.Module):
    def forward(self, *input_tensor: Tensor) -> Tensor:
        return input_tensor[0]


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("the model is broken")


def last_backward(
    x: Tensor, output: Tensor, y: Tensor, layer: Any, losses: Any, m: int = 0, count: int = 1
) -> Tensor | None:
    return run_backward_impl(x, output, None, y, layer, losses, 1, m, count, True, m == count - 1)


def inner_backward(x: Tensor, output: Tensor, gradient: Tensor | None) -> Tensor | None:
    return run_backward_impl(x, output, gradient, None, None, None, 0, 0, 1, False, True)


def train(
    stages: list[nn.Module], batch: Tensor, targets: Tensor, layer: nn.Module, order: list[int]
) -> Tensor:
    """Two stages by hand, two rows a microbatch; the loss."""
    losses = build_loss_list()
    xs, ys = batch.split(2), targets.split(2)
    for m in order:
        between = run_forward_impl(stages[0], xs[m], 0, m)
        received = between.detach()
        output = run_forward_impl(stages[1], received, 1, m)
        sent = last_backward(received, output, ys[m], layer, losses, m, len(xs))
        assert received.grad is None
        inner_backward(xs[m], between, sent)
    return get_loss_impl(losses)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 0, 1, 2]], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(
    "first", [Named(), nn.Embedding(5, WIDTH), nn.Linear(WIDTH, WIDTH)], ids=repr
)
def test_two_stages_give_what_the_unpipelined_model_gives(
    first: nn.Module, reduction: str, order: list[int]
) -> None:
    first.zero_grad()
    stages = [first, *linear_tanh(1)]
    is_words = isinstance(first, nn.Embedding)
    batch = torch.arange(8) % 5 if is_words else torch.randn(8, WIDTH)
    targets = torch.randn(8, WIDTH)
    xs, ys = batch.split(2), targets.split(2)
    wanted = reference(
        stages, [(xs[m],) for m in order], [ys[m] for m in order], weights=[0.25] * 4
    )

    loss = train(stages, batch, targets, nn.MSELoss(reduction=reduction), order)

    torch.testing.assert_close(loss, torch.stack(wanted.losses).mean())
    assert not loss.requires_grad
    for found, want in zip(gradients(stages), wanted.gradients, strict=True):
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, want[name], rtol=0, atol=0, msg=name)


def test_a_stage_is_called_by_name_where_it_asks() -> None:
    stage, x = NamedOnly(), torch.randn(2, WIDTH)
    assert torch.equal(run_forward_impl(stage, x, 0, 0), stage(input_tensor=x))
    assert asks_for_input_tensor(Named())
    assert not asks_for_input_tensor(Gathering())
    assert run_forward_impl(Gathering(), x, 0, 0) is x


def test_the_gradient_of_the_input_is_of_this_backward_alone() -> None:
    stage, x = Named(), torch.randn(2, WIDTH, requires_grad=True)
    ones = torch.ones(2, WIDTH)
    x.grad = ones.clone()
    output = run_forward_impl(stage, x, 0, 0)
    (wanted,) = torch.autograd.grad(output, x, ones, retain_graph=True)
    found = inner_backward(x, output, ones)
    assert found is not None
    assert torch.equal(found, wanted)
    assert torch.equal(x.grad, ones)


def test_a_graph_below_the_first_stage_serves_all_microbatches() -> None:
    table = nn.Embedding(5, WIDTH)
    parts = table(torch.arange(4)).split(2)
    for part in parts:
        output = run_forward_impl(Gathering(), part, 0, 0)
        inner_backward(part, output, torch.ones_like(output))
    assert table.weight.grad is not None
    assert table.weight.grad.sum() == 4 * WIDTH


def test_a_backward_frees_the_graph() -> None:
    x = torch.randn(2, WIDTH)
    output = run_forward_impl(Named(), x, 0, 0)
    inner_backward(x, output, torch.ones_like(output))
    with pytest.raises(RuntimeError, match="second time"):
        inner_backward(x, output, torch.ones_like(output))


def test_what_a_stage_raises_is_raised_and_placed() -> None:
    with pytest.raises(RuntimeError, match="the model is broken") as caught:
        run_forward_impl(Broken(), torch.randn(2), 3, 7)
    assert caught.value.__notes__ == ["stage 3, action 3F7"]
    x = torch.randn(2, WIDTH)
    output = run_forward_impl(Named(), x, 0, 0)
    with pytest.raises(RuntimeError, match="size of tensor") as caught:
        last_backward(x, output, torch.randn(3, WIDTH + 1), lambda a, b: a - b, None)
    assert caught.value.__notes__ == ["stage 1, action 1B0"]


def test_what_backward_refuses() -> None:
    x = torch.randn(2, WIDTH)
    output = run_forward_impl(Named(), x, 0, 0)
    with pytest.raises(ParameterError, match="no gradient of the output"):
        inner_backward(x, output, None)
    with pytest.raises(ParameterError, match="nothing that can be trained"):
        last_backward(x, output.detach(), torch.zeros(2, WIDTH), build_pp_loss_layer(), None)
    with pytest.raises(ParameterError, match="loss_fn must return a tensor"):
        last_backward(x, output, x, lambda output, y: 1.0, None)


def test_a_loss_list_is_emptied_when_it_is_read() -> None:
    losses = build_loss_list()
    losses += [torch.tensor(1.0), torch.tensor(2.0)]
    assert get_loss_impl(losses) == 3
    with pytest.raises(ExecutionError, match="no loss has been gathered"):
        get_loss_impl(losses)


def test_a_module_is_built_where_the_default_device_is() -> None:
    stage = build_module_chunk("torch.nn.Linear", 3, 4, bias=False)
    assert stage.training
    assert [p.shape for p in stage.parameters()] == [(4, 3)]
    with torch.device("meta"):
        assert build_module_chunk("torch.nn.Linear", 3, 4).weight.is_meta


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("torch.nn.Linnear", "has no attribute 'Linnear'"),
        ("no_such_package.Stage", "No module named 'no_such_package'"),
        ("", "give the dotted path"),
        ("builtins.dict", "gives a dict, not a module"),
    ],
)
def test_what_is_no_module(path: str, complaint: str) -> None:
    with pytest.raises(ParameterError, match=complaint):
        build_module_chunk(path)


def test_a_folder_is_made_known_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "stage_of_a_user.py").write_text("from torch.nn import Identity as Stage\n")
    for _ in range(2):
        add_sys_path_impl(str(tmp_path))
    assert sys.path.count(str(tmp_path)) == 1
    assert isinstance(build_module_chunk("stage_of_a_user.Stage"), nn.Identity)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, torch.optim.SGD),
        ({"optimizer": torch.optim.AdamW, "weight_decay": 0.5}, torch.optim.AdamW),
    ],
    ids=["SGD", "AdamW"],
)
def test_an_optimizer_of_any_class(options: dict[str, Any], kind: type) -> None:
    stage = nn.Linear(2, 2)
    optimizer = build_optimizer_chunk(stage, 0.1, **options)
    assert type(optimizer) is kind
    before = stage.weight.detach().clone()
    stage(torch.ones(1, 2)).sum().backward()
    optimizer_step(optimizer)
    assert not torch.equal(stage.weight, before)
    optimizer_zero_grad(optimizer)
    assert stage.weight.grad is None


def test_a_parameter_by_name() -> None:
    stage = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    assert get_parameter(stage, "0.weight") is stage[0].weight
    assert get_parameter(stage, "0.weight", (3, 2)) is stage[0].weight
    assert get_parameter(stage, "1.running_mean", (3,)) is stage[1].running_mean
    with pytest.raises(ParameterError, match=r"has shape \(3, 2\), not \(2, 3\)"):
        get_parameter(stage, "0.weight", (2, 3))
    with pytest.raises(AttributeError, match="no parameter or buffer 'weight'"):
        get_parameter(stage, "weight")
