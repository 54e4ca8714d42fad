"""Backward of one microbatch through one stage, whole (B) or in two parts (I, then W)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fullbore.runtime.backward.engine import Root, run
from fullbore.runtime.backward.graph import make_plan
from fullbore.runtime.backward.jobs import Job, group
from fullbore.runtime.backward.products import Node

# W hands its gradients to the engine whenever it has this many bytes of them, so that it never
# holds those of all weights at once.
FLUSH_BYTES = 1 << 20


def full_backward(outputs: Sequence[Root], gradients: Sequence[Tensor | None]) -> None:
    """B: add the gradients of everything that ``outputs`` come from to its ``.grad``.

    An output without gradient (None), and one that does not require grad, is left out. The gradient
    of a loss is its weight. An output may be given as its edge, so that it need not be kept.

    Raises:
        ValueError: the gradients do not match the outputs in number or shape.
    """
    roots, given = _connected(outputs, gradients)
    if roots:
        run(roots, given)


class SplitBackward:
    """B in two parts: ``input_backward`` (I), and later ``weight_backward`` (W).

    After both, every ``.grad`` is what ``full_backward`` would have made it, and every hook has
    fired as often. See ``docs/split_backward.md`` for what is left to W.

    Args:
        outputs: what the forward returned, or the edges of that, or the loss that came of it.
        inputs: the leaves that the forward was given. I adds to the ``.grad`` of those that require
            grad.
        fed: the forward was given tensors that require no grad as well, such as the batch of a
            first stage: what comes of them counts as data, too.
    """

    def __init__(
        self, outputs: Sequence[Root], inputs: Sequence[Tensor], *, fed: bool = False
    ) -> None:
        self._outputs: Sequence[Root] | None = outputs
        self._inputs = [tensor for tensor in inputs if tensor.requires_grad]
        self._fed = fed
        self._waiting: list[Job] = []
        self._shares = False

    @property
    def deferred(self) -> int:
        """The number of products that wait for W."""
        return len(self._waiting)

    def input_backward(self, gradients: Sequence[Tensor | None]) -> None:
        """I: compute what other stages wait for, and whatever cannot be deferred.

        The tensors in ``gradients`` may be needed until W has run: leave them as they are.

        Raises:
            ValueError: as of ``full_backward``.
            RuntimeError: I has run before.
        """
        if self._outputs is None:
            raise RuntimeError("the input backward of this microbatch has already run")
        roots, given = _connected(self._outputs, gradients)
        inputs = self._inputs
        self._outputs, self._inputs = None, []
        if not roots:
            return
        plan = make_plan([_node(root) for root in roots], inputs, fed=self._fed)
        self._waiting, self._shares = plan.waiting, plan.shares
        if plan.targets is None:
            run(roots, given)
        elif plan.targets:
            run(roots, given, plan.targets)

    def weight_backward(self) -> None:
        """W: compute the gradients that I left out.

        Raises:
            RuntimeError: I has not run, or a tensor that a gradient needs was modified since.
        """
        if self._outputs is not None:
            raise RuntimeError("the input backward of this microbatch has not run yet")
        # Hooks of the graph, which the outputs may keep alive, hold the list itself.
        jobs = self._waiting.copy()
        self._waiting.clear()
        roots: list[GradientEdge] = []
        gradients: list[Tensor] = []
        size = 0
        for together in group(jobs) if self._shares else [[job] for job in jobs]:
            for job in together:
                size += job.finish(roots, gradients)
            if size >= FLUSH_BYTES:
                run(roots, gradients)
                roots, gradients, size = [], [], 0
        if roots:
            run(roots, gradients)


def _connected(
    outputs: Sequence[Root], gradients: Sequence[Tensor | None]
) -> tuple[list[Root], list[Tensor]]:
    """The outputs that take part in backward, and their gradients."""
    roots: list[Root] = []
    given: list[Tensor] = []
    for output, gradient in zip(outputs, gradients, strict=True):
        if gradient is None:
            continue
        if isinstance(output, Tensor):
            if not output.requires_grad:
                continue
            if gradient.shape != output.shape:
                raise ValueError(
                    f"the gradient of an output of shape {list(output.shape)} has shape "
                    f"{list(gradient.shape)}"
                )
        roots.append(output)
        given.append(gradient)
    return roots, given


def _node(output: Root) -> Node:
    if isinstance(output, GradientEdge):
        return output.node
    return output.grad_fn or get_gradient_edge(output).node
