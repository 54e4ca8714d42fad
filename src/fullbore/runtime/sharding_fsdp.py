"""FSDP2 (``fully_shard``) in a stage: gathered, freed and reduced when the schedule says so.

What has no public name in torch is reached through the states that ``fully_shard`` leaves at the
modules; only this file knows them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fullbore.runtime.replicas import WatchAll, no_answer, run_aside, wait_for

_FLAGS = ("reduce_grads", "reshard_after_backward", "post_forward_mesh_info")


class FullySharded:
    """One root of ``fully_shard``, with all that is sharded below it.

    During a step the parameters of all of it are gathered by UNSHARD and stay until RESHARD,
    whatever ``reshard_after_forward`` says: with several microbatches in flight every forward and
    backward would gather them anew. Gradients add up unreduced until REDUCE_GRAD.
    """

    def __init__(self, module: nn.Module, stage: int, watch: WatchAll) -> None:
        self._module: Any = module
        self._root: Any = None
        self.stage, self._watch_all = stage, watch
        self._ranks: set[int] = set()
        self._saved: list[tuple[Any, dict[str, Any]]] = []
        self._groups: list[Any] = []
        self._upcast: list[Any] = []
        self._is_open = self._is_pending = False
        self.reduced = True

    @property
    def parameters(self) -> list[Tensor]:
        """All that are there, whole or in part."""
        return list(self._module.parameters())

    def begin(self, *, training: bool) -> None:
        """Take over from FSDP's hooks."""
        root = self._root = self._module._get_fsdp_state()
        root._lazy_init()
        parts = (p for p in self._module.modules() if hasattr(p, "_get_fsdp_state"))
        # A state may belong to several modules.
        states = dict.fromkeys(part._get_fsdp_state() for part in parts)
        self._groups = [group for state in states for group in state._fsdp_param_groups]
        meshes = (group.mesh_info.mesh.mesh for group in self._groups)
        self._ranks = {rank for mesh in meshes for rank in mesh.flatten().tolist()}
        self._saved = [(root._state_ctx, {"is_last_backward": root._state_ctx.is_last_backward})]
        self._saved += [(g, {name: getattr(g, name) for name in _FLAGS}) for g in self._groups]
        self.reduced = not (training and any(g.reduce_grads for g in self._groups))
        root._state_ctx.is_last_backward = False
        for group in self._groups:
            group.reduce_grads = group.reshard_after_backward = False
            group.post_forward_mesh_info = None
        # Those whose gradients add up in a wider type than they are computed in.
        self._upcast = [
            p for g in self._groups for p in g.fsdp_params if p.reduce_dtype is not None
        ]
        self._is_open = self._is_pending = False

    def unshard(self) -> None:
        """Start to gather the parameters."""
        if self._is_open:
            return
        self._is_open = self._is_pending = True
        for group in self._groups:
            group.unshard(async_op=True)

    def ready(self) -> None:
        """Wait for the parameters; gather them now if the schedule did not say when.

        Raises:
            TransportError: the other replicas do not take part.
        """
        if not self._is_open:
            self.unshard()
        if self._is_pending:
            self._complete()
        # FSDP would gather in backward what ran before in forward, all of which is gathered, and
        # other microbatches have run since.
        for group in self._groups:
            group._post_forward_indices.clear()
            group.comm_ctx.post_forward_order.clear()

    def settle(self) -> None:
        """Add gradients up in the type in which they are reduced, one microbatch at a time."""
        for parameter in self._upcast:
            if hasattr(parameter, "_unsharded_param"):
                parameter.accumulate_unsharded_grad_if_needed()
                parameter.to_accumulated_grad_if_needed()

    def reshard(self) -> None:
        """Free the gathered parameters."""
        if self._is_pending:
            self._complete()
        self._is_open = False
        for group in self._groups:
            group.reshard()

    def reduce(self) -> None:
        """Reduce and scatter the gradients that this step added, and add them to ``.grad``.

        Raises:
            TransportError: the other replicas do not take part.
        """
        if self.reduced:
            return
        self.reduced = True
        for group, flags in self._saved[1:]:
            group.reduce_grads = flags["reduce_grads"]
        self._root._state_ctx.is_last_backward = True
        self._reduce_all()
        self._root._state_ctx.is_last_backward = False
        for group in self._groups:
            group.reduce_grads = False

    def finish(self) -> None:
        """Reduce and free what the schedule left.

        Raises:
            TransportError: the other replicas do not take part.
        """
        self.reduce()
        if self._is_open:
            self.reshard()

    def restore(self, *, failed: bool) -> None:
        """Give the flags back. After a failure, gradients that were not reduced are dropped."""
        if failed:
            self._drop()
        for holder, flags in self._saved:
            for name, value in flags.items():
                setattr(holder, name, value)
        self._saved = []

    def _watch(self, seconds: float) -> None:
        self._watch_all(seconds, partners=self._ranks)

    def _complete(self) -> None:
        self._is_pending = False
        if self._on_host:
            works = [work for work in map(_work, self._groups) if work is not None]
            wait_for(lambda: all(work.is_completed() for work in works), self._watch)
        try:
            for group in self._groups:
                group.wait_for_unshard()
        except RuntimeError as error:
            raise no_answer(self.stage, "gathering the parameters", self._ranks, error) from error

    def _reduce_all(self) -> None:
        def reduce_all() -> None:
            with torch.no_grad():
                for group in reversed(self._groups):
                    group.post_backward()
                self._root._root_post_backward_final_callback()

        try:
            if self._on_host:
                # There its collectives wait where nothing could wake them.
                run_aside(reduce_all, self._watch)
            else:
                reduce_all()
        except RuntimeError as error:
            raise no_answer(self.stage, "reducing the gradients", self._ranks, error) from error

    @property
    def _on_host(self) -> bool:
        return any(group.device.type == "cpu" for group in self._groups)

    def _drop(self) -> None:
        self.reduced = True
        for group in self._groups:
            for parameter in group.fsdp_params:
                if hasattr(parameter, "_unsharded_param"):
                    parameter._unsharded_param.grad = None
                parameter.unsharded_accumulated_grad = None
        is_waiting = any(work and not work.is_completed() for work in map(_work, self._groups))
        if self._root is not None and self._root._is_root and not is_waiting:
            self._module.reset_iter_state()


def _work(group: Any) -> Any:
    """The gathering under way, if it can be asked."""
    result = group._all_gather_result
    work = None if result is None else result.all_gather_work
    return work if hasattr(work, "is_completed") else None
