"""Every rank learns what the others say: small values that travel along the pipeline's own links.

The messages are a transport's like any other, so that a failure elsewhere ends the wait, and a rank
that does something else meanwhile is an error and not a hang.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import inf
from typing import Any

import torch

from fullbore.runtime.output import StepOutput
from fullbore.runtime.transport.base import GATHER_STAGE, Edge, Transport, make_tag
from fullbore.runtime.tree import Tree

_ROUNDS = 8


def with_returns(edges: Collection[Edge]) -> tuple[Edge, ...]:
    """``edges`` and their opposites, sorted: what a value needs to come back."""
    return tuple(sorted({*edges, *((receiver, sender) for sender, receiver in edges)}))


class Gathering:
    """The ranks as a tree, rooted at rank 0.

    Args:
        edges: of all ranks, each with its opposite.
        transport: is connected along ``edges``.
    """

    def __init__(self, edges: Collection[Edge], transport: Transport) -> None:
        self._transport = transport
        self._parents: dict[int, int] = {}
        self._children: dict[int, list[int]] = {}
        reached, waiting = {0}, [0]
        for rank in waiting:
            self._children[rank] = []
            for sender, receiver in sorted(edges):
                if sender == rank and receiver not in reached:
                    reached.add(receiver)
                    waiting.append(receiver)
                    self._parents[receiver] = rank
                    self._children[rank].append(receiver)

    def run(self, value: Tree, epoch: int) -> list[Tree]:
        """What every process gave, in the order of their ranks; a process that plays all of them
        gives one value.

        Args:
            value: this process's; tensors without graph. Their shapes may differ between ranks.
            epoch: the number of the call, the same on all ranks.
        """
        ranks = self._transport.ranks
        if len(ranks) > 1 or not self._parents:
            return [value]
        (rank,) = ranks
        up, down = (make_tag(epoch, GATHER_STAGE, 0, backward=way) for way in (True, False))
        parent, found = self._parents.get(rank), {rank: value}
        for child in self._children[rank]:
            found.update(self._receive((child, rank), up))
        if parent is not None:
            self._transport.send((rank, parent), up, found)
            found = self._receive((parent, rank), down)
        for child in self._children[rank]:
            self._transport.send((rank, child), down, found)
        self._transport.flush()
        return [found[rank] for rank in sorted(found)]

    def share_loss(self, out: StepOutput, epoch: int) -> StepOutput:
        """``out`` with the losses and weights of the process that has them. All ranks call it."""
        told = self.run((out.losses, out.weights), epoch)
        losses, weights = next((pair for pair in told if pair[0] is not None), told[0])
        return StepOutput(losses, out.outputs, weights)

    def clock_offset(self, clock: Callable[[], float], epoch: int) -> float:
        """What to add to this process's clock to get rank 0's, within half of the quickest of some
        messages to its parent in the tree and back. All ranks call it together.

        Args:
            clock: gives the time, in seconds.
            epoch: the number of the call, the same on all ranks.
        """
        ranks = self._transport.ranks
        if len(ranks) > 1 or not self._parents:
            return 0.0
        (rank,) = ranks
        up, down = (make_tag(epoch, GATHER_STAGE, 0, backward=way) for way in (True, False))
        parent, best, offset = self._parents.get(rank), inf, 0.0
        for _ in range(_ROUNDS if parent is not None else 0):
            assert parent is not None
            before = clock()
            self._transport.send((rank, parent), up, None)
            theirs = self._receive((parent, rank), down)
            after = clock()
            if after - before < best:
                best, offset = after - before, float(theirs) - (before + after) / 2
        for child in self._children[rank]:
            for _ in range(_ROUNDS):
                self._receive((child, rank), up)
                self._transport.send(
                    (rank, child), down, torch.tensor(clock() + offset, dtype=torch.float64)
                )
        return offset

    def _receive(self, edge: Edge, tag: int) -> Any:
        self._transport.post(edge, tag)
        return self._transport.recv(edge, tag)
