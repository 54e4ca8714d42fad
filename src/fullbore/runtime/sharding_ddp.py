"""DistributedDataParallel in a stage: gradients are averaged once a step, by the runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fullbore.errors import ParameterError
from fullbore.runtime.replicas import WatchAll, no_answer, wait_for


class _Pending(NamedTuple):
    """A collective under way: on a flat copy of ``tensors``, which are parameters or buffers."""

    work: Any
    flat: Tensor
    tensors: Sequence[Tensor]


class Replicated:
    """Keeps DDP's hooks quiet during a step, and averages ``.grad`` over DDP's group at its end.

    All of ``.grad`` is averaged, not only what the step added, as DDP does: what was averaged in an
    earlier step is the same on all replicas and stays what it was; what was added under
    ``no_sync()`` is averaged with the rest. Inside the user's ``no_sync()`` nothing is.

    Attributes:
        late: parameters that other stages add to as well, to be averaged after the last action.
        others: all those that other stages add to.
    """

    def __init__(self, module: DistributedDataParallel, stage: int, watch: WatchAll) -> None:
        self._module, self._stage, self._group = module, stage, module.process_group
        self._ranks = dist.get_process_group_ranks(self._group)
        self._watch = partial(watch, partners=self._ranks)
        self._pending: list[_Pending] = []
        self._buffers: list[_Pending] = []
        self._flags: dict[str, bool] = {}
        self._syncs = self._is_late_due = False
        self.late: list[Tensor] = []
        self.others: set[Tensor] = set()
        self.reduced = True

    @property
    def parameters(self) -> list[Tensor]:
        """All that DDP is in charge of."""
        return list(self._module._module_parameters)

    def begin(self, *, training: bool) -> None:
        """As under ``no_sync()``; buffers are not broadcast in every forward either.

        Raises:
            ParameterError: the step runs under ``join()``.
        """
        module = self._module
        if module._join_config.enable:
            raise ParameterError(
                f"stage {self._stage}: join() counts every forward as a step, of which a pipeline "
                "runs several; give all replicas the same number of steps instead"
            )
        self._syncs = training and module.require_backward_grad_sync
        self.reduced = not self._syncs
        self._flags = {
            name: getattr(module, name)
            for name in ("require_backward_grad_sync", "require_forward_param_sync")
        }
        module.require_backward_grad_sync = module.require_forward_param_sync = False
        if module.static_graph:
            # Else the first backward would reduce all gradients when it ends.
            name = "_static_graph_delay_allreduce_enqueued"
            self._flags[name] = getattr(module, name)
            setattr(module, name, True)

    def unshard(self) -> None:
        """Every replica holds all parameters."""

    def ready(self) -> None:
        """They are always there."""

    def settle(self) -> None:
        """Gradients add up in ``.grad``."""

    def reshard(self) -> None:
        """They stay."""

    def reduce(self) -> None:
        """Start to average the gradients, and to copy rank 0's buffers, as DDP would have done
        before the next forward."""
        if self.reduced:
            return
        self.reduced = True
        if dist.get_world_size(self._group) == 1:
            return
        module = self._module
        self._start([p for p in self.parameters if p not in self.others])
        self._is_late_due = True
        if module.forward_sync_buffers:
            ignored = module.parameters_to_ignore
            buffers = [b for name, b in module.module.named_buffers() if name not in ignored]
            for bucket in _buckets(buffers, module.broadcast_bucket_size):
                flat = torch.cat([buffer.detach().reshape(-1) for buffer in bucket])
                work = dist.broadcast(flat, group=self._group, group_src=0, async_op=True)
                self._buffers.append(_Pending(work, flat, bucket))

    def finish(self) -> None:
        """Put the averages in place.

        Raises:
            TransportError: a collective failed.
        """
        self.reduce()
        if self._is_late_due:
            self._is_late_due = False
            self._start(self.late)
        with torch.no_grad():
            while self._pending:
                flat, parameters = self._take(self._pending, "averaging the gradients")
                put = _put_sparse_gradient if flat.is_sparse else _put_gradients
                put(flat, parameters)
            while self._buffers:
                flat, buffers = self._take(self._buffers, "broadcasting the buffers")
                if dist.get_rank(self._group) != 0:
                    for buffer, value in zip(buffers, _pieces(flat, buffers), strict=True):
                        buffer.copy_(value)

    def restore(self, *, failed: bool) -> None:
        """Give the flags back."""
        for name, value in self._flags.items():
            setattr(self._module, name, value)
        self._flags = {}
        if failed:
            self._pending, self._buffers = [], []
            self.reduced, self._is_late_due = True, False

    def _start(self, parameters: Sequence[Tensor]) -> None:
        sparse = _sparse_parameters(self._module)
        dense = []
        for parameter in reversed(parameters):
            if parameter in sparse and parameter.requires_grad:
                self._pending.append(self._average_sparse(parameter))
            elif parameter.requires_grad:
                dense.append(parameter)
        for bucket in _buckets(dense, self._module.bucket_bytes_cap):
            self._pending.append(self._average(bucket))

    def _average(self, parameters: Sequence[Tensor]) -> _Pending:
        first, count = parameters[0], dist.get_world_size(self._group)
        # After the gradients, which parameters have one: replicas may differ in that.
        used = torch.tensor([float(p.grad is not None) for p in parameters], dtype=first.dtype)
        flat = torch.cat(
            [
                *(_gradient(p).reshape(-1) for p in parameters),
                used.to(first.device, non_blocking=True),
            ]
        )
        # Before the sum, as DDP does, so that it cannot overflow.
        flat.mul_(1 / count)
        work = dist.all_reduce(flat, group=self._group, async_op=True)
        return _Pending(work, flat, parameters)

    def _average_sparse(self, parameter: Tensor) -> _Pending:
        """Of the rows that any replica has used."""
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if not gradient.is_sparse:
            gradient = gradient.to_sparse(1)
        mean = (gradient * (1 / dist.get_world_size(self._group))).coalesce()
        work = dist.all_reduce(mean, group=self._group, async_op=True)
        return _Pending(work, mean, [parameter])

    def _take(self, pending: list[_Pending], doing: str) -> tuple[Tensor, Sequence[Tensor]]:
        work, flat, tensors = pending.pop(0)
        if flat.device.type == "cpu":
            wait_for(work.is_completed, self._watch)
        try:
            # Of a device it orders streams, and doesn't block.
            work.wait()
        except RuntimeError as error:
            raise no_answer(self._stage, doing, self._ranks, error) from error
        return flat, tensors


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    return parameter.grad.to(parameter.dtype)


def _put_gradients(flat: Tensor, parameters: Sequence[Tensor]) -> None:
    used = flat[-len(parameters) :]
    for index, (parameter, value) in enumerate(
        zip(parameters, _pieces(flat, parameters), strict=True)
    ):
        if parameter.grad is not None:
            parameter.grad.copy_(value)
        elif used[index]:
            parameter.grad = torch.empty_like(parameter).copy_(value)


def _sparse_parameters(module: nn.Module) -> set[Tensor]:
    tables = (m for m in module.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag)))
    return {table.weight for table in tables if table.sparse}


def _put_sparse_gradient(mean: Tensor, parameters: Sequence[Tensor]) -> None:
    (parameter,) = parameters
    if parameter.grad is None and not mean._nnz():
        return
    if parameter.grad is None or parameter.grad.is_sparse:
        parameter.grad = mean
    else:
        parameter.grad.copy_(mean.to_dense())


def _pieces(flat: Tensor, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    offset = 0
    for tensor in tensors:
        yield flat[offset : offset + tensor.numel()].view(tensor.shape)
        offset += tensor.numel()


def _buckets(tensors: Iterable[Tensor], limit: int) -> Iterator[list[Tensor]]:
    """Tensors of one type and device, up to ``limit`` bytes or one tensor; the same on all
    replicas."""

    def sort(tensor: Tensor) -> tuple[str, str]:
        return str(tensor.dtype), str(tensor.device)

    for _, alike in groupby(sorted(tensors, key=sort), key=sort):
        bucket: list[Tensor] = []
        size = 0
        for tensor in alike:
            if bucket and size + tensor.nbytes > limit:
                yield bucket
                bucket, size = [], 0
            bucket.append(tensor)
            size += tensor.nbytes
        yield bucket
