"""Decides, from the graph of one forward, which weight gradients can wait.

*Data* nodes lead to a stage input; the rest is *parameter side*, where every path ends in a
parameter. Where data meets the parameter side in a recognised product, the product becomes a job of
W. Any other such meeting makes the parameters behind it *immediate*: their gradients are computed
in I. This decides only when a gradient is computed, never what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.utils.hooks import RemovableHandle

from fullbore.runtime.backward.engine import Root, runs_nodes_alone
from fullbore.runtime.backward.jobs import Job, Leaves, leaves_out_of_order, share_leaves
from fullbore.runtime.backward.products import PRODUCTS, Edges, Node, Product

NODES_RUN_ALONE = runs_nodes_alone()

_ACCUMULATE: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]


@dataclass(slots=True)
class Plan:
    """What I is to compute, and the jobs that it leaves to W.

    Attributes:
        targets: the tensors whose gradients I computes, and nodes that must run too. None where the
            graph bears nothing but a full backward.
        waiting: fills while I runs, in the order in which a full backward computes them.
        shares: whether some of the jobs have a parameter in common.
    """

    targets: list[Root] | None
    waiting: list[Job]
    shares: bool = False


def make_plan(roots: Sequence[Node], inputs: Sequence[Tensor], *, fed: bool = False) -> Plan:
    """Look at the graph below ``roots``, and have its products report to ``Plan.waiting``.

    ``inputs`` are the leaves whose gradients I computes. With ``fed`` the forward had other input,
    which wants no gradient and leaves no trace in the graph: an operand without one may be it.
    """
    fed = fed and NODES_RUN_ALONE
    walk = _Walk({id(tensor) for tensor in inputs}, fed=fed)
    walk.visit(roots)
    if walk.is_whole:
        walk.drop_all()
        return Plan(None, [])
    shares = walk.settle()
    targets: list[Root] = [*inputs, *(leaf.variable for leaf in walk.immediate)]
    alone = walk.bottom
    if fed:
        # Below these may be nothing that I computes.
        alone = [*alone, *(node for _, node, _ in walk.found), *walk.module_hooks()]
    targets += [GradientEdge(node, 0) for node in alone]
    return Plan(targets, walk.waiting, shares)


class _Walk:
    """One pass over a graph. ``data`` are the ids of the tensors that count as data; with ``fed``,
    so do operands that are not in the graph."""

    def __init__(self, data: set[int], *, fed: bool = False) -> None:
        self.data, self.fed = data, fed
        # What a node leads to: None if it is data, else the leaves of its parameters.
        self.side: dict[Node, Leaves | None] = {}
        self.found: list[tuple[Job, Node, RemovableHandle]] = []
        self.waiting: list[Job] = []
        self.immediate: set[Node] = set()
        # Products with nothing but parameters below them.
        self.bottom: list[Node] = []
        self.is_whole = False

    def visit(self, roots: Sequence[Node]) -> None:
        """Classify every node after those below it."""
        side, accumulate, leaf, classify = self.side, _ACCUMULATE, self._leaf, self._classify
        side.update((root, leaf(root)) for root in roots if type(root) is accumulate)
        # A node whose children come first is put back with its edges.
        stack: list[Any] = list(roots)
        while stack:
            node = stack.pop()
            if type(node) is tuple:
                node, edges = node
            elif node in side:
                continue
            else:
                side[node] = None
                edges = node.next_functions
                later: list[Any] = [(node, edges)]
                for child, _ in edges:
                    if child is None or child in side:
                        continue
                    if type(child) is accumulate:
                        side[child] = leaf(child)
                    else:
                        later.append(child)
                if len(later) > 1:
                    stack += later
                    continue
            leaves = classify(node, edges)
            if leaves is not None:
                side[node] = leaves
        for root in roots:
            self.immediate.update(side[root] or ())

    def _classify(self, node: Node, edges: Edges) -> Leaves | None:
        side = self.side
        is_data = is_mixed = False
        leaves: Leaves | None = None
        for child, _ in edges:
            if child is None:
                is_data |= self.fed and not _is_scaling(node)
                continue
            found = side[child]
            if found is None:
                is_data = True
            elif leaves is None:
                leaves = found
            elif leaves is not found:
                is_mixed = True
        name = type(node).__name__
        # A reentrant checkpoint runs a backward of its own, and refuses to be in a partial one. Of
        # an end that is no parameter nobody knows what it does, so it must run when it would.
        if "Checkpoint" in name or not edges:
            self.is_whole = True
            return None
        if leaves is None:
            return None
        product = PRODUCTS.get(name)
        is_bottom = not is_data and product is not None and product.has_constant_factor(edges)
        if is_bottom and NODES_RUN_ALONE:
            self.bottom.append(node)
        elif not is_data:
            return leaves if not is_mixed else self._union(edges)
        self._meet(node, edges, product)
        return None

    def _union(self, edges: Edges) -> Leaves:
        return tuple({leaf: None for child, _ in edges for leaf in self.side.get(child) or ()})

    def _leaf(self, accumulate: Node) -> Leaves | None:
        return None if id(accumulate.variable) in self.data else (accumulate,)

    def _meet(self, node: Node, edges: Edges, product: Product | None) -> None:
        """Make a job of a node between data and parameters, or its parameters immediate."""
        positions, ends, leaves = [], [], []
        for position, edge in enumerate(edges):
            found = self.side[edge[0]] if edge[0] is not None else None
            if found is not None:
                positions.append(position)
                ends.append(edge)
                leaves.append(found)
        if product is None or not product.is_readable(node, positions):
            self.immediate.update(*leaves)
            return
        job = Job(product, positions, ends, leaves)
        hook = node.register_hook(_report_to(self.waiting, job))
        if len(hook.hooks_dict_ref()) > 1:
            # Someone else's hook, who expects to see the gradients that the job would leave out.
            hook.remove()
            self.immediate.update(*leaves)
            return
        self.found.append((job, node, hook))

    def settle(self) -> bool:
        """Finish every parameter either in I or in W, so that its hooks fire once.

        Returns whether jobs share parameters.
        """
        jobs = [job for job, *_ in self.found]
        shares = share_leaves(jobs)
        if shares:
            self.immediate |= leaves_out_of_order(jobs)
        while self.immediate and self._hasten():
            pass
        return shares

    def _hasten(self) -> bool:
        """Take from the jobs what leads to an immediate parameter. Returns whether any did."""
        immediate, changed = self.immediate, False
        for job, _, hook in self.found:
            early = [i for i, leaves in enumerate(job.leaves) if not immediate.isdisjoint(leaves)]
            if not early:
                continue
            changed = True
            immediate.update(*(job.leaves[i] for i in early))
            job.drop(early)
            if not job.positions:
                hook.remove()
        if changed:
            self.found = [entry for entry in self.found if entry[0].positions]
        return changed

    def drop_all(self) -> None:
        """Leave nothing to W."""
        for *_, hook in self.found:
            hook.remove()

    def module_hooks(self) -> list[Node]:
        """The nodes that call a module's backward hooks once the gradient of its input is there."""
        return [node for node in self.side if type(node).__name__ == "BackwardHookFunctionBackward"]


def _is_scaling(node: Node) -> bool:
    """Whether the operand without a graph is a number, such as the scale of a low-rank update."""
    if type(node).__name__ not in ("MulBackward0", "DivBackward0"):
        return False
    raw = getattr(node, "_raw_saved_other", None)
    other = None if raw is None or raw.unpack_hook is not None else node._saved_other
    return other is None or other.dim() == 0


def _report_to(waiting: list[Job], job: Job) -> Callable[..., None]:
    """A hook for the job's node. It does not hold the node, which would make a cycle."""

    def report(_: object, given: tuple[Tensor | None, ...]) -> None:
        (dy,) = given
        if dy is not None:
            job.start(torch._C._current_autograd_node(), dy)
            waiting.append(job)

    return report
