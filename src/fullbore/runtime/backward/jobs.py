"""Weight gradients that wait, and the order in which the engine may be given them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from torch import Tensor
from torch.autograd.graph import GradientEdge

from fullbore.runtime.backward.products import Gradients, Node, Product

Leaves = tuple[Node, ...]
"""The nodes that accumulate into the parameters below a node."""


class Job:
    """The gradients of those operands of one product that wait for W.

    ``positions``, ``edges`` (where the engine goes on from) and ``leaves`` have one entry for each
    such operand.
    """

    __slots__ = ("dy", "edges", "gradients", "leaves", "positions", "product")

    def __init__(
        self,
        product: Product,
        positions: list[int],
        edges: list[tuple[Node, int]],
        leaves: list[Leaves],
    ) -> None:
        self.product, self.positions, self.edges, self.leaves = product, positions, edges, leaves
        self.gradients: Gradients | None = None
        self.dy: Tensor | None = None

    def drop(self, indices: Sequence[int]) -> None:
        """Leave these operands to I."""
        for index in reversed(indices):
            del self.positions[index], self.edges[index], self.leaves[index]

    def start(self, node: Node, dy: Tensor) -> None:
        """Take what W needs from the product's node, which has just run and been given ``dy``."""
        self.gradients, self.dy = self.product.record(node, self.positions), dy

    def finish(self, roots: list[GradientEdge], gradients: list[Tensor]) -> int:
        """Append the gradients, and let go of what they come from. Returns their bytes."""
        compute, dy = self.gradients, self.dy
        self.gradients = self.dy = None
        assert compute is not None
        assert dy is not None
        size = 0
        for (node, slot), gradient in zip(self.edges, compute(dy), strict=True):
            roots.append(GradientEdge(node, slot))
            gradients.append(gradient)
            size += gradient.numel() * gradient.element_size()
        return size


def share_leaves(jobs: Iterable[Job]) -> bool:
    """Whether two operands lead to one parameter."""
    seen: set[Node] = set()
    for job in jobs:
        for leaves in job.leaves:
            if not seen.isdisjoint(leaves):
                return True
            seen.update(leaves)
    return False


def group(jobs: Sequence[Job]) -> list[list[Job]]:
    """Those that share a parameter together, which otherwise would fire its hooks twice."""
    parents: dict[Node, Node] = {}

    def representative(leaf: Node) -> Node:
        while (parent := parents.setdefault(leaf, leaf)) is not leaf:
            parents[leaf] = leaf = parents[parent]
        return leaf

    for job in jobs:
        first = representative(job.leaves[0][0])
        for leaves in job.leaves:
            for leaf in leaves:
                parents[representative(leaf)] = first
    groups: dict[Node, list[Job]] = {}
    for job in jobs:
        groups.setdefault(representative(job.leaves[0][0]), []).append(job)
    return list(groups.values())


def leaves_out_of_order(jobs: Sequence[Job]) -> set[Node]:
    """The parameters whose gradient W would add up in another order than a full backward.

    The engine adds what it is given at a node before what other nodes bring there; a full backward
    goes by the order of the forward. With three contributions the difference can be seen.
    """
    given = Counter(edge for job in jobs for edge in job.edges)
    leaves = {
        edge: found for job in jobs for edge, found in zip(job.edges, job.leaves, strict=True)
    }
    brought: Counter[tuple[Node, int]] = Counter()
    stack = [node for node, _ in given]
    seen = set(stack)
    while stack:
        for edge in stack.pop().next_functions:
            if edge[0] is None:
                continue
            brought[edge] += 1
            if edge[0] not in seen:
                seen.add(edge[0])
                stack.append(edge[0])
    return {
        leaf
        for edge, count in given.items()
        if brought[edge] and count + brought[edge] > 2
        for leaf in leaves[edge]
    }
