"""What stays alive between I and W, and after."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, cast

import pytest
import torch
from tests.runtime.backward.cases import mlp
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from fullbore.runtime.backward import SplitBackward, engine, full_backward, split

pytestmark = pytest.mark.torch


class Storages(TorchDispatchMode):
    """Counts the bytes that operations have made and that are still alive."""

    def __init__(self, given: Iterable[Tensor]) -> None:
        super().__init__()
        self.given = {tensor.untyped_storage()._cdata for tensor in given}
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata in self.given:
                    continue
                self.made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return out

    def alive(self) -> int:
        self.made = {key: made for key, made in self.made.items() if not made[0].expired()}
        return sum(size for _, size in self.made.values())


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Whatever dies, dies without the cycle collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def storage_of(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def encoder() -> nn.Module:
    return nn.Sequential(
        *(nn.TransformerEncoderLayer(64, 4, 256, 0.0, "gelu", norm_first=True) for _ in range(2))
    )


def alive_after(module: nn.Module) -> tuple[int, int, int]:
    """Bytes after F, I and W, without the gradients that I and W have made."""
    x, dy = torch.randn(32, 2, 64, requires_grad=True), torch.randn(32, 2, 64)
    leaves: list[Tensor] = [x, *module.parameters()]
    storages = Storages([*leaves, dy])

    def made() -> int:
        sizes: list[int] = [leaf.grad.nbytes for leaf in leaves if leaf.grad is not None]
        return storages.alive() - sum(sizes)

    with storages:
        y = module(x)
        after_f = made()
        both = SplitBackward([y], [x])
        del y
        both.input_backward([dy])
        after_i = made()
        both.weight_backward()
        return after_f, after_i, made()


def test_no_more_is_alive_after_i_than_after_f(without_collector):
    # The first backward under a mode imports much, and in doing so keeps tensors of its frames.
    alive_after(encoder())
    after_f, after_i, after_w = alive_after(encoder())
    assert 0 < after_i <= after_f
    assert after_w == 0


def test_only_the_operands_of_what_waits_are_kept(without_collector):
    module, x = mlp(), torch.randn(4, 8, requires_grad=True)
    before = module[0](x)
    after = module[1](before)
    y = module[2](after)
    refs = {"before gelu": storage_of(before), "after gelu": storage_of(after)}
    both = SplitBackward([y], [x])
    del before, after
    both.input_backward([torch.ones_like(y)])
    assert {name for name, ref in refs.items() if not ref.expired()} == {"after gelu"}
    # Even if the output, and so the graph, lives on.
    both.weight_backward()
    assert all(ref.expired() for ref in refs.values())


def test_what_saved_tensor_hooks_keep_dies_in_i(without_collector):
    class Packed:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

    packed: list[weakref.ref[Any]] = []

    def pack(tensor: Tensor) -> Packed:
        kept = Packed(tensor)
        packed.append(weakref.ref(kept))
        return kept

    module, x = mlp(), torch.randn(4, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        y = module(x)
    both = SplitBackward([y], [x])
    assert all(ref() is not None for ref in packed)
    both.input_backward([torch.ones_like(y)])
    assert packed
    assert all(ref() is None for ref in packed)


class Mark:
    """Dies with the node that it is put on."""


def marked(tensor: Tensor) -> weakref.ref[Mark]:
    mark, node = Mark(), cast(Any, tensor.grad_fn)
    node.metadata["mark"] = mark
    return weakref.ref(mark)


def test_the_graph_dies_with_the_output_while_w_waits(without_collector):
    module, x = mlp(), torch.randn(4, 8, requires_grad=True)
    hidden = module[1](module[0](x))
    y = module[2](hidden)
    refs = [marked(hidden), marked(y)]
    both = SplitBackward([y], [x])
    both.input_backward([torch.ones_like(y)])
    del hidden, y
    assert both.deferred
    assert [ref() for ref in refs] == [None, None]


def test_a_full_backward_in_i_keeps_nothing(without_collector):
    module, x = mlp(), torch.randn(4, 8, requires_grad=True)
    hidden = checkpoint(module[:2], x, use_reentrant=True)
    ref = storage_of(hidden)
    y = module[2](hidden)
    both = SplitBackward([y], [x])
    del hidden
    both.input_backward([torch.ones_like(y)])
    assert ref.expired()


@pytest.mark.parametrize("steps", ["I", "I W"])
def test_there_is_no_cycle(without_collector, steps):
    module, x = encoder(), torch.randn(32, 2, 64, requires_grad=True)
    y = module(x)
    both = SplitBackward([y], [x])
    refs: list[weakref.ref[Any]] = [marked(y), weakref.ref(both)]
    both.input_backward([torch.ones_like(y)])
    if "W" in steps:
        both.weight_backward()
    del y, both
    assert [ref() for ref in refs] == [None, None]


def test_an_interrupted_i_leaves_no_cycle(without_collector):
    module, x = mlp(), torch.randn(4, 8, requires_grad=True)
    hidden = module[0](x)
    hidden.register_hook(lambda _: 1 / 0)
    ref = storage_of(hidden)
    both = SplitBackward([module[2](module[1](hidden))], [x])
    del hidden
    with pytest.raises(ZeroDivisionError):
        both.input_backward([torch.ones(4, 8)])
    del both
    assert ref.expired()


def test_nothing_grows(without_collector):
    module = encoder()
    x = torch.randn(32, 2, 64, requires_grad=True)

    def objects_after(steps: int) -> int:
        for _ in range(steps):
            both = SplitBackward([module(x)], [x])
            both.input_backward([torch.ones(32, 2, 64)])
            both.weight_backward()
        return len(gc.get_objects())

    start = objects_after(10)
    assert objects_after(300) <= start + 10


def test_w_hands_over_its_gradients_in_parts(monkeypatch):
    module = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(4)))
    size = 16 * 16 * 4
    handed: list[int] = []
    original = engine.run

    def run(roots, gradients, inputs=()):
        handed.append(len(roots))
        original(roots, gradients, inputs)

    monkeypatch.setattr(split, "run", run)
    for limit, parts in (
        (1, [1, 1, 1, 1]),
        (2 * size, [2, 2]),
        (3 * size, [3, 1]),
        (9 * size, [4]),
    ):
        monkeypatch.setattr(split, "FLUSH_BYTES", limit)
        both = SplitBackward([module(torch.randn(4, 16))], [])
        both.input_backward([torch.ones(4, 16)])
        handed.clear()
        both.weight_backward()
        assert handed == parts


def test_three_threads_at_once():
    def work(seed: int, *, splits: bool) -> list[Tensor | None]:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            module = encoder()
            for weight in module.parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
        for _ in range(10):
            x = torch.randn(32, 2, 64, generator=generator).requires_grad_()
            y = module(x)
            if splits:
                both = SplitBackward([y], [x])
                both.input_backward([torch.ones_like(y)])
                both.weight_backward()
            else:
                full_backward([y], [torch.ones_like(y)])
        return [weight.grad for weight in module.parameters()]

    expected = [work(seed, splits=False) for seed in range(3)]
    found: dict[int, list[Tensor | None]] = {}
    threads = [
        threading.Thread(target=lambda seed=seed: found.update({seed: work(seed, splits=True)}))
        for seed in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(3):
        for gradient, reference in zip(found[seed], expected[seed], strict=True):
            assert gradient is not None
            assert reference is not None
            assert torch.equal(gradient, reference)
