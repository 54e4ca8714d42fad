"""Cases B01 to B06 and B09 to B11: one stage's backward in two parts equals a whole one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.runtime.backward.cases import Calls, parameter
from tests.runtime.backward.limits import View
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from fullbore.runtime.backward import SplitBackward, full_backward

pytestmark = pytest.mark.torch

Make = Callable[[], nn.Module]


def stage(function: Callable[..., Any], **parts: Callable[[], Any]) -> Make:
    """Makes a module of this forward and these parts."""
    return lambda: Calls(function, **{name: part() for name, part in parts.items()})


def gradients(make: Make, x: Tensor, *, splits: bool) -> list[Tensor | None]:
    """Of two microbatches: what the weights have gathered, and each input's."""
    torch.manual_seed(0)
    module, inputs = make(), []
    for scale in (1, 2):
        h = (x * scale).requires_grad_() if x.is_floating_point() else x.clone()
        y = module(h)
        dy = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y.dtype)
        if splits:
            both = SplitBackward([y], [h])
            both.input_backward([dy])
            both.weight_backward()
        else:
            full_backward([y], [dy])
        inputs.append(h)
    return [t.grad for t in (*module.parameters(), *inputs)]


def assert_split_equals_whole(make: Make, x: Tensor) -> None:
    whole, split = gradients(make, x, splits=False), gradients(make, x, splits=True)
    for found, expected in zip(split, whole, strict=True):
        assert (found is None) == (expected is None)
        assert found is None or expected is None or torch.equal(found, expected)


def test_b01_x_w_w():
    make = stage(lambda self, h: (h @ self.w @ self.w).sum(), w=lambda: parameter(2, 2))
    assert_split_equals_whole(make, torch.tensor([[1.0, -2.0]]))


def test_b02_a_layer_used_again():
    def make() -> nn.Module:
        one, other = nn.Linear(8, 8), nn.Linear(8, 8)
        return nn.Sequential(one, nn.Tanh(), other, nn.Tanh(), one)

    assert_split_equals_whole(make, torch.randn(4, 8))


def test_b03_a_gate_on_half_of_a_layer():
    def gate(self: Calls, h: Tensor) -> Any:
        a, b = self.a(h).chunk(2, -1)
        return a * b.sigmoid()

    assert_split_equals_whole(stage(gate, a=lambda: nn.Linear(8, 16)), torch.randn(4, 8))


def test_b04_an_lstm():
    make = stage(lambda self, h: self.a(h)[0], a=lambda: nn.LSTM(8, 8))
    assert_split_equals_whole(make, torch.randn(3, 2, 8))


def test_b04_a_full_backward_hook():
    calls: list[int] = []

    def make() -> nn.Module:
        module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        for part in (module, *module):
            part.register_full_backward_hook(lambda *_: calls.append(1))
        return module

    assert_split_equals_whole(make, torch.randn(4, 8))
    # Two microbatches, whole and split.
    assert len(calls) == 4 * 2 * 2


def test_b04_a_function_that_returns_a_view():
    make = stage(lambda self, h: View.apply(self.a(h)), a=lambda: nn.Linear(8, 8))
    assert_split_equals_whole(make, torch.randn(4, 8))


def checkpointed(*, use_reentrant: bool) -> nn.Module:
    return Calls(
        lambda self, h: checkpoint(self.body, h, use_reentrant=use_reentrant),
        body=nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)),
    )


def test_b05_a_checkpoint():
    assert_split_equals_whole(lambda: checkpointed(use_reentrant=False), torch.randn(4, 8))


def test_b05_a_checkpointed_forward_runs_twice():
    module, runs = checkpointed(use_reentrant=False), []
    module.body.register_forward_pre_hook(lambda *_: runs.append(1))  # type: ignore[union-attr]
    h = torch.randn(4, 8, requires_grad=True)
    y = module(h)
    both = SplitBackward([y], [h])
    both.input_backward([torch.ones_like(y)])
    both.weight_backward()
    assert len(runs) == 2


def test_b06_a_reentrant_checkpoint():
    assert_split_equals_whole(lambda: checkpointed(use_reentrant=True), torch.randn(4, 8))


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (lambda: nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8)), torch.tensor([[1, 2, 1]])),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(2, 3, 8, 8)),
        (lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)), torch.randn(4, 8)),
        (stage(lambda self, h: F.linear(h, self.w), w=lambda: parameter(4, 8)), torch.randn(4, 8)),
        (stage(lambda self, h: h * self.w, w=lambda: parameter(8)), torch.randn(4, 8)),
    ],
    ids=["embedding", "conv", "layer norm", "weight in a lambda", "broadcast"],
)
def test_b09_parameters_of_every_kind(make: Make, x: Tensor):
    assert_split_equals_whole(make, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_b10_autocast(dtype: torch.dtype):
    def forward(self: Calls, h: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.b(F.gelu(self.a(h)))

    def make() -> nn.Module:
        return Calls(forward, a=nn.Linear(8, 8).to(dtype), b=nn.Linear(8, 8).to(dtype))

    assert_split_equals_whole(make, torch.randn(4, 8))


class Products(TorchDispatchMode):
    """Counts the matrix products, and what else makes a weight's gradient."""

    NAMES = ("mm", "addmm", "bmm", "baddbmm", "convolution_backward", "embedding_dense_backward")

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in self.NAMES:
            self.counts[name] += 1
        if name == "convolution_backward":
            self.counts["conv input"] += args[-1][0]
            self.counts["conv weight"] += args[-1][1]
        return func(*args, **(kwargs or {}))


def count(*parts: Callable[[], Any]) -> list[Counter[str]]:
    found = []
    for part in parts:
        with Products() as products:
            part()
        found.append(+products.counts)
    return found


def test_b11_a_block_computes_every_weight_product_in_w():
    block = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", norm_first=True)
    h = torch.randn(5, 2, 16, requires_grad=True)
    with Products() as forward:
        y = block(h)
    both = SplitBackward([y], [h])
    i, w = count(lambda: both.input_backward([torch.ones_like(y)]), both.weight_backward)

    assert +forward.counts == {"addmm": 4}
    # The products of attention itself are inside one fused kernel.
    assert i == {"mm": 4}
    assert w == {"mm": 4}


def test_b11_attention_written_out_computes_its_own_products_in_i():
    def attend(self: Calls, h: Tensor) -> Any:
        q, k, v = self.qkv(h).chunk(3, -1)
        return self.out((q @ k.transpose(1, 2)).softmax(-1) @ v)

    module = Calls(attend, qkv=nn.Linear(8, 24), out=nn.Linear(8, 8))
    h = torch.randn(2, 5, 8, requires_grad=True)
    y = module(h)
    both = SplitBackward([y], [h])
    i, w = count(lambda: both.input_backward([torch.ones_like(y)]), both.weight_backward)
    assert i == {"mm": 2, "bmm": 4}
    assert w == {"mm": 2}


@pytest.mark.parametrize(
    ("make", "x", "in_i", "in_w"),
    [
        (
            lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.ConvTranspose2d(4, 3, 3)),
            torch.randn(2, 3, 8, 8),
            {"convolution_backward": 2, "conv input": 2},
            {"convolution_backward": 2, "conv weight": 2},
        ),
        (
            lambda: nn.Sequential(nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 8)),
            torch.tensor([[1, 2, 1]]),
            {"mm": 1},
            {"mm": 1, "embedding_dense_backward": 1},
        ),
    ],
    ids=["conv", "embedding"],
)
def test_b11_convolutions_and_embeddings_too(make: Make, x: Tensor, in_i, in_w):
    module, h = make(), x.requires_grad_() if x.is_floating_point() else x
    y = module(h)
    both = SplitBackward([y], [h])
    i, w = count(lambda: both.input_backward([torch.ones_like(y)]), both.weight_backward)
    assert (i, w) == (in_i, in_w)
