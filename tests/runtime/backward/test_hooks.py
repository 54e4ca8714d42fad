"""Hooks fire as often as under a full backward, see the same values, and may change them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.runtime.backward.cases import mlp
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook

from fullbore.runtime.backward import SplitBackward, full_backward

pytestmark = pytest.mark.torch

Seen = list[tuple[str, Any]]


def note(seen: Seen, name: str) -> Callable[..., None]:
    return lambda *given: seen.append((name, plain(given)))


def plain(value: Any) -> Any:
    """Values that can be compared, without the modules among them."""
    if isinstance(value, Tensor):
        return value.detach().clone().tolist()
    if isinstance(value, tuple | list):
        return [plain(item) for item in value if not isinstance(item, nn.Module)]
    return value


def tensor_hook(module: Any, h: Tensor, seen: Seen) -> Any:
    hidden = module[0](h)
    hidden.register_hook(note(seen, "hidden"))
    hidden.register_hook(lambda dy: dy * 3)
    return module[2](module[1](hidden))


def retained(module: Any, h: Tensor, seen: Seen) -> Any:
    hidden = module[0](h)
    hidden.retain_grad()
    hidden.register_hook(lambda _: seen.append(("retained", plain(hidden.grad))))
    out = module[2](module[1](hidden))
    h.register_hook(lambda _: seen.append(("retained", plain(hidden.grad))))
    return out


def node_prehook(module: Any, h: Tensor, seen: Seen) -> Any:
    hidden = module[0](h)
    hidden.grad_fn.register_prehook(lambda dy: (dy[0] * 3,))
    hidden.grad_fn.register_prehook(note(seen, "prehook"))
    return module[2](module[1](hidden))


def node_hook(module: Any, h: Tensor, seen: Seen) -> Any:
    hidden = module[0](h)
    hidden.grad_fn.register_hook(note(seen, "hook"))
    hidden.grad_fn.register_hook(lambda dx, _: tuple(g if g is None else g * 3 for g in dx))
    return module[2](module[1](hidden))


def module_hooks(module: Any, h: Tensor, seen: Seen) -> Any:
    handles = [part.register_full_backward_hook(note(seen, "module")) for part in module]
    handles += [part.register_full_backward_pre_hook(note(seen, "before")) for part in module]
    handles.append(module.register_full_backward_hook(note(seen, "whole")))
    handles.append(module[0].register_full_backward_pre_hook(lambda _, dy: (dy[0] * 2,)))
    handles.append(module[2].register_full_backward_hook(lambda _, dx, __: (dx[0] * 2,)))
    out = module(h)
    for handle in handles:
        handle.remove()
    return out


def weight_node_hook(module: Any, h: Tensor, seen: Seen) -> Any:
    turned = module[0].weight.t()
    turned.register_hook(note(seen, "turned"))
    turned.register_hook(lambda dw: dw * 2)
    turned.grad_fn.register_hook(note(seen, "turned node"))
    return module[2](module[1](torch.addmm(module[0].bias, h, turned)))


def several(module: Any, h: Tensor, seen: Seen) -> Any:
    hidden = module[0](h)
    curved = module[1](hidden)
    register_multi_grad_hook([hidden, curved], note(seen, "both"))
    register_multi_grad_hook([hidden, curved], note(seen, "any"), mode="any")
    return module[2](curved)


FED = [(forward, True) for forward in (tensor_hook, retained, node_prehook, node_hook)]
FED += [(forward, True) for forward in (module_hooks, weight_node_hook, several)]
# A batch has no hooks.
ALL = FED + [(forward, False) for forward, _ in FED if forward is not retained]


def parameter_hooks(module: nn.Module, seen: Seen) -> None:
    for name, weight in module.named_parameters():
        weight.register_hook(note(seen, f"{name} before"))
        weight.register_hook(lambda dw: dw * 2)
        weight.register_post_accumulate_grad_hook(
            lambda w, name=name: seen.append((name, plain(w.grad)))
        )


def run(forward: Callable[..., Tensor], *, splits: bool, fed: bool) -> tuple[Seen, Any]:
    torch.manual_seed(0)
    module = mlp()
    seen: Seen = []
    parameter_hooks(module, seen)
    inputs = []
    for _ in range(2):
        h = torch.randn(4, 8, requires_grad=True) if fed else torch.randn(4, 8)
        y = forward(module, h, seen)
        dy = torch.randn_like(y)
        if splits:
            split = SplitBackward([y], [h])
            split.input_backward([dy])
            assert split.deferred
            split.weight_backward()
        else:
            full_backward([y], [dy])
        inputs.append(h)
    return seen, [plain(t.grad) for t in (*module.parameters(), *inputs)]


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize(("forward", "fed"), ALL)
def test_hooks_see_and_do_the_same(forward: Callable[..., Tensor], fed: bool):
    seen, gradients = run(forward, splits=False, fed=fed)
    split_seen, split_gradients = run(forward, splits=True, fed=fed)
    assert split_gradients == gradients
    assert sorted(split_seen, key=repr) == sorted(seen, key=repr)


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_a_deprecated_module_hook_sees_the_weights_gradient():
    module = nn.Linear(8, 8)
    seen: list[int] = []
    module.register_backward_hook(lambda _, dx, __: seen.append(plain(dx).count(None)))
    h = torch.randn(4, 8, requires_grad=True)
    y = module(h)
    split = SplitBackward([y], [h])
    split.input_backward([torch.ones_like(y)])
    assert seen == [0]
    assert split.deferred == 0


def test_modules_of_a_stage_that_is_fed_with_plain_numbers_call_their_backward_hooks():
    module = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))
    seen: list[nn.Module] = []
    for part in (module, *module):
        part.register_full_backward_hook(lambda part, *_: seen.append(part))
    y = module(torch.randn(4, 8))
    split = SplitBackward([y], [], fed=True)
    # As under a full backward: no gradient of the first module's input is asked for.
    with pytest.warns(UserWarning, match="Full backward hook is firing"):
        split.input_backward([torch.ones_like(y)])
    split.weight_backward()
    assert set(seen) == {module, *module}
    assert len(seen) == 3
