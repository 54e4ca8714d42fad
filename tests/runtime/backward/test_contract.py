"""What may be asked of a backward, and what is refused."""

from __future__ import annotations

import pytest
import torch
from tests.runtime.backward.cases import freeze, mlp
from tests.runtime.backward.limits import Stop
from torch import Tensor, nn

from fullbore.runtime.backward import SplitBackward, full_backward

pytestmark = pytest.mark.torch


def leaf(*shape: int) -> Tensor:
    return torch.ones(shape, requires_grad=True)


def split_backward(outputs: list[Tensor], gradients: list[Tensor | None]) -> None:
    split = SplitBackward(outputs, [])
    split.input_backward(gradients)
    split.weight_backward()


BOTH = pytest.mark.parametrize("backward", [full_backward, split_backward], ids=["B", "I, W"])


@BOTH
def test_a_loss_counts_by_its_gradient(backward):
    w = leaf(3)
    backward([(w * 2).sum()], [torch.tensor(0.25)])
    assert w.grad is not None
    assert w.grad.tolist() == [0.5, 0.5, 0.5]


@BOTH
def test_an_output_without_gradient_is_left_out(backward):
    used, ignored = leaf(3), leaf(3)
    backward([used * 2, ignored.sum(), ignored * 3], [torch.ones(3), None, None])
    assert used.grad is not None
    assert ignored.grad is None


@BOTH
def test_an_output_that_needs_no_gradient_may_be_given_one(backward):
    w = leaf(3)
    backward([torch.ones(3), w * 2], [torch.ones(3), torch.ones(3)])
    assert w.grad is not None


@BOTH
def test_without_anything_to_do_nothing_is_done(backward):
    backward([], [])
    backward([torch.ones(3)], [torch.ones(3)])
    backward([torch.ones(3)], [None])
    backward([leaf(3) * 2], [None])


@BOTH
def test_gradients_are_added_to_what_is_there(backward):
    w = leaf(3)
    w.grad = torch.ones(3)
    backward([w * 2], [torch.ones(3)])
    assert w.grad.tolist() == [3, 3, 3]


@BOTH
@pytest.mark.parametrize("shape", [(3,), (1, 3), (4, 2, 3), ()])
def test_a_gradient_of_another_shape_is_refused(backward, shape):
    w = leaf(2, 3)
    with pytest.raises(ValueError, match=r"output of shape \[2, 3\]"):
        backward([w * 2], [torch.ones(shape)])
    assert w.grad is None


@BOTH
def test_a_missing_gradient_is_refused(backward):
    with pytest.raises(ValueError, match="shorter"):
        backward([leaf(3) * 2, leaf(3) * 2], [torch.ones(3)])


def test_inputs_that_need_no_gradient_get_none():
    module, ids, h = mlp(), torch.ones(4, dtype=torch.long), leaf(4, 8)
    y = module(h) + ids[:, None]
    split = SplitBackward([y], [ids, h])
    split.input_backward([torch.ones_like(y)])
    assert ids.grad is None
    assert h.grad is not None


def test_the_input_gradient_is_there_before_w_and_only_added_to():
    module, h = mlp(), leaf(4, 8)
    h.grad = torch.ones(4, 8)
    split = SplitBackward([module(h)], [h])
    split.input_backward([torch.ones(4, 8)])
    early = h.grad.clone()
    split.weight_backward()
    assert not torch.equal(early, torch.ones(4, 8))
    assert torch.equal(h.grad, early)


def test_weights_get_no_gradient_before_w():
    module, h = mlp(), leaf(4, 8)
    split = SplitBackward([module(h)], [h])
    assert split.deferred == 0
    split.input_backward([torch.ones(4, 8)])
    assert split.deferred == 2
    assert all(weight.grad is None for weight in module.parameters())
    split.weight_backward()
    assert split.deferred == 0
    assert all(weight.grad is not None for weight in module.parameters())


def test_w_of_nothing_does_nothing():
    module, h = freeze(mlp(), ""), leaf(4, 8)
    split = SplitBackward([module(h)], [h])
    split.input_backward([torch.ones(4, 8)])
    split.weight_backward()
    assert h.grad is not None


def test_parts_out_of_order_are_refused():
    split = SplitBackward([mlp()(leaf(4, 8))], [])
    with pytest.raises(RuntimeError, match="not run yet"):
        split.weight_backward()
    split.input_backward([torch.ones(4, 8)])
    with pytest.raises(RuntimeError, match="already run"):
        split.input_backward([torch.ones(4, 8)])


class Shifted(nn.Module):
    """Adds a parameter to the batch, then two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.layers = nn.Parameter(torch.randn(8)), mlp()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x + self.shift)
        return out


class LowRank(nn.Module):
    """A weight with a scaled update of low rank: products of parameters alone wait with it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.down, self.up = nn.Parameter(torch.randn(8, 2)), nn.Parameter(torch.randn(2, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight + 0.5 * (self.down @ self.up))


@pytest.mark.parametrize(
    ("module", "batch", "waits"),
    [
        (nn.Sequential(nn.LayerNorm(8), mlp()), (4, 8), 2),
        (mlp(), (4, 8), 2),
        (nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)), (2, 3, 8, 8), 1),
        (nn.LayerNorm(8), (4, 8), 0),
        (Shifted(), (4, 8), 2),
        (LowRank(), (4, 8), 1),
    ],
    ids=["norm and linears", "linears", "norm and conv", "norm", "sum", "low rank"],
)
def test_layers_of_a_stage_that_is_fed_with_plain_numbers_wait(module, batch, waits):
    x = torch.randn(batch)
    y = module(x)
    full_backward([y], [torch.ones_like(y)])
    expected = [weight.grad for weight in module.parameters()]
    module.zero_grad()

    y = module(x)
    split = SplitBackward([y], [], fed=True)
    split.input_backward([torch.ones_like(y)])
    assert split.deferred == waits
    split.weight_backward()
    assert not x.requires_grad
    for weight, gradient in zip(module.parameters(), expected, strict=True):
        assert torch.equal(weight.grad, gradient)


def in_flight(module: nn.Module, *, splits: bool) -> list[Tensor | None]:
    """Two forwards under one autocast, then the backwards."""
    inputs = [torch.randn(4, 8, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    with torch.autocast("cpu", torch.bfloat16):
        outputs = [module(module(x.requires_grad_()).tanh()) for x in inputs]
    if not splits:
        for y in outputs:
            full_backward([y], [torch.ones_like(y)])
    else:
        both = [SplitBackward([y], [x]) for y, x in zip(outputs, inputs, strict=True)]
        for part in both:
            part.input_backward([torch.ones(4, 8, dtype=torch.bfloat16)])
            assert part.deferred == 4
        for part in both:
            part.weight_backward()
    gradients = [t.grad for t in (*module.parameters(), *inputs)]
    module.zero_grad()
    return gradients


def test_microbatches_in_flight_may_share_the_casts_of_autocast():
    module = mlp()
    whole, split = in_flight(module, splits=False), in_flight(module, splits=True)
    for found, expected in zip(split, whole, strict=True):
        assert found is not None
        assert expected is not None
        assert torch.equal(found, expected)


def test_anomaly_detection_stays_usable():
    module, h = mlp(), leaf(4, 8)
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        split = SplitBackward([module(h)], [h])
        split.input_backward([torch.ones(4, 8)])
        split.weight_backward()
        bad = SplitBackward([(module(h) * 0).sqrt()], [h])
        with pytest.raises(RuntimeError, match="nan values"):
            bad.input_backward([torch.zeros(4, 8)])


def test_a_tensor_that_w_needs_must_stay_as_it_is():
    module, h = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), leaf(4, 8)
    hidden = module[1](module[0](h))
    split = SplitBackward([module[2](hidden)], [h])
    split.input_backward([torch.ones(4, 8)])
    with torch.no_grad():
        hidden.add_(1)
    with pytest.raises(RuntimeError, match=r"shape \[4, 8\].*modified in place"):
        split.weight_backward()


@pytest.mark.parametrize(
    ("module", "make"),
    [
        (nn.Embedding(11, 8), lambda: torch.ones(4, dtype=torch.long)),
        (nn.Conv1d(3, 3, 1), lambda: torch.ones(2, 3, 4)),
        (lambda x: x @ nn.Parameter(torch.ones(2, 4, 3)), lambda: torch.ones(2, 3, 4)),
        (lambda x: nn.Parameter(torch.ones(3, 2)) @ x, lambda: torch.ones(2, 3)),
    ],
    ids=["embedding", "conv", "bmm", "left of mm"],
)
def test_every_product_notices_a_change(module, make):
    x = make()
    y = module(x)
    split = SplitBackward([y], [])
    split.input_backward([torch.ones_like(y)])
    assert split.deferred == 1
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified in place"):
        split.weight_backward()


def test_what_gets_no_gradient_from_above_leaves_none():
    stopped, trained, h = nn.Linear(8, 8), nn.Linear(8, 8), leaf(4, 8)
    split = SplitBackward([Stop.apply(stopped(h)) + trained(h)], [h])
    split.input_backward([torch.ones(4, 8)])
    assert split.deferred == 1
    split.weight_backward()
    assert stopped.weight.grad is None
    assert stopped.bias.grad is None
    assert trained.weight.grad is not None


def test_an_error_in_i_comes_through():
    module, h = mlp(), leaf(4, 8)
    h.register_hook(lambda _: 1 / 0)
    split = SplitBackward([module(h)], [h])
    with pytest.raises(ZeroDivisionError):
        split.input_backward([torch.ones(4, 8)])


def test_under_no_grad_and_autocast_gradients_are_the_same():
    module, h = mlp(), leaf(4, 8)
    full_backward([module(h)], [torch.ones(4, 8)])
    expected = [weight.grad for weight in module.parameters()]
    module.zero_grad()
    split = SplitBackward([module(h)], [h])
    with torch.no_grad():
        split.input_backward([torch.ones(4, 8)])
        split.weight_backward()
    for weight, gradient in zip(module.parameters(), expected, strict=True):
        assert gradient is not None
        assert weight.grad is not None
        assert torch.equal(weight.grad, gradient)
        assert not weight.grad.requires_grad
