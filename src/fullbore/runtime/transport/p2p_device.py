"""Tensors that are not in main memory, through the process group's own backend (NCCL)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from fullbore.runtime.transport.base import Edge
from fullbore.runtime.tree import Tree
from fullbore.runtime.wire import Leaf, in_memory_order


@dataclass(frozen=True, slots=True)
class Later:
    """A value whose tensors are still on their way."""

    value: Tree
    works: Sequence[dist.Work]

    def get(self) -> Tree:
        """The value, once what follows on the current stream may use it."""
        for work in self.works:
            work.wait()
        return self.value


class DeviceChannel:
    """One communicator of two ranks for every directed edge.

    Sizes are exact on both sides: the receiver posts when it has read the packet that tells them,
    in the order of the packets. Tensors travel as bytes, so that every dtype can.

    Args:
        group: the ranks.
        edges: all edges, the same on every rank, in the same order.
    """

    def __init__(self, group: dist.ProcessGroup | None, edges: Collection[Edge]) -> None:
        self._rank, self._world = dist.get_rank(group), dist.get_process_group_ranks(group)
        self._device = torch.device(torch.accelerator.current_accelerator() or "cpu")
        self._groups: dict[Edge, dist.ProcessGroup] = {}
        self._under_way: list[tuple[dist.Work, Tensor]] = []
        backend = dist.get_backend_config(group)
        for edge in edges:
            if self._rank not in edge:
                continue
            # Only the two ranks take part; as all edges have one order, no two ranks wait for each
            # other.
            pair = [self._world[rank] for rank in edge]
            self._groups[edge] = dist.new_group(
                pair, backend=backend, use_local_synchronization=True
            )
            self._greet(edge)

    def send(self, peer: int, tensors: Sequence[Tensor]) -> None:
        """Start to send ``tensors`` to ``peer``."""
        group, target = self._groups[self._rank, peer], self._world[peer]
        self._under_way = [item for item in self._under_way if not item[0].is_completed()]
        for tensor in tensors:
            data = _bytes(tensor.detach().resolve_conj().resolve_neg())
            work = dist.isend(data, target, group) if data.numel() else None
            if work is not None:
                self._under_way.append((work, data))

    def receive(self, peer: int, leaves: Sequence[Leaf]) -> tuple[list[Tensor], list[dist.Work]]:
        """Start to receive tensors like ``leaves``."""
        group, source = self._groups[peer, self._rank], self._world[peer]
        tensors = [_like(leaf, self._device) for leaf in leaves]
        works = [dist.irecv(_bytes(t), source, group) for t in tensors if t.numel()]
        return tensors, [work for work in works if work is not None]

    def flush(self) -> None:
        """Let what follows on the current stream wait for everything sent."""
        for work, _ in self._under_way:
            work.wait()
        self._under_way.clear()

    def close(self) -> None:
        """Destroy the communicators."""
        for group in self._groups.values():
            dist.destroy_process_group(group)
        self._groups.clear()

    def _greet(self, edge: Edge) -> None:
        # The first transfer connects; no schedule should wait for that.
        byte = torch.zeros(1, dtype=torch.uint8, device=self._device)
        sender, receiver = (self._world[rank] for rank in edge)
        if self._rank == edge[0]:
            work = dist.isend(byte, receiver, self._groups[edge])
        else:
            work = dist.irecv(byte, sender, self._groups[edge])
        if work is not None:
            work.wait()


def device_backend(group: dist.ProcessGroup | None) -> str | None:
    """What moves accelerator tensors between the ranks of ``group``, if anything does."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return None
    config = dict(part.split(":") for part in dist.get_backend_config(group).split(","))
    backend = config.get(accelerator.type)
    # gloo's point-to-point calls take CPU tensors only.
    return None if backend in ("gloo", "undefined") else backend


def _like(leaf: Leaf, device: torch.device) -> Tensor:
    if leaf.strides is None:
        return torch.empty(leaf.shape, dtype=leaf.dtype, device=device)
    return torch.empty_strided(leaf.shape, leaf.strides, dtype=leaf.dtype, device=device)


def _bytes(tensor: Tensor) -> Tensor:
    return in_memory_order(tensor).view(-1).view(torch.uint8)
