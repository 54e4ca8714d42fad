"""The two ways of running autograd's engine that the rest of this package builds on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, _engine_run_backward

Root = Tensor | GradientEdge


def run(roots: Sequence[Root], gradients: Sequence[Tensor], inputs: Sequence[Root] = ()) -> None:
    """``torch.autograd.backward`` without its checks, which cost as much as a small backward.

    With ``inputs``, only the nodes on a path to one of them run, and they themselves. A gradient
    that is larger than its root where that was broadcast is summed.
    """
    _engine_run_backward(
        tuple(roots),
        tuple(gradients),
        False,  # retain_graph
        False,  # create_graph
        tuple(inputs),
        allow_unreachable=True,
        accumulate_grad=True,
    )


def runs_nodes_alone() -> bool:
    """Whether a node in ``inputs`` runs although no gradient of its operands is asked for.

    torch documents that as an implementation detail. It lets a product that has nothing but
    parameters below it report the gradient it was given without computing any.
    """
    with torch.inference_mode(mode=False), torch.enable_grad():
        weight = torch.ones(1, 1, device="cpu", requires_grad=True)
        result = torch.ones(1, 1, device="cpu").mm(weight)
        node = result.grad_fn
        assert node is not None
        seen: list[tuple[Tensor | None, ...]] = []
        node.register_hook(lambda computed, _: seen.append(computed))
        run([result], [torch.ones(1, 1, device="cpu")], [GradientEdge(node, 0)])
    return seen == [(None, None)] and weight.grad is None
