"""What a custom function written for torch finds on its schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fullbore.ir import Kind
from fullbore.pipelining._custom import Desk, Receives, check_delivered
from fullbore.pipelining.stage import _PipelineStageBase
from fullbore.runtime.tree import Tree

_INSTEAD = {
    "_internal_losses": "loss_fn, whose results are in ctx.losses of the runtime's context",
    "unshard_ops": "ctx.run() in a function for UNSHARD",
    "unsharded_stages": "ctx.run() in a function for UNSHARD",
}


class Served:
    """Attributes and methods of torch's schedules that custom functions use."""

    _desk: Desk
    _stages: list[_PipelineStageBase]
    _loss_fn: Callable[..., Tensor] | None
    stage_index_to_group_rank: dict[int, int]
    backward_counter: Counter[int]

    @property
    def fwd_recv_ops(self) -> Receives:
        """Inputs that the action at hand received by message; there is nothing left to wait for."""
        return self._desk.forward

    @property
    def bwd_recv_ops(self) -> Receives:
        """Output gradients that the action at hand received by message."""
        return self._desk.backward

    def _maybe_compute_loss(
        self, stage: Any, output: Tree, target_mbs: Any, mb_index: int, loss_kwargs: Any = None
    ) -> None:
        """Nothing: the executor computes the loss of what the stage gave."""
        context = self._desk.find(stage.stage_index, mb_index, Kind.F)
        if stage.is_last:
            check_delivered(context, output, what="_maybe_compute_loss")

    def _maybe_get_loss(self, stage: Any, mb_index: int) -> Tensor | None:
        """In a function for B or I of the last stage: the loss, attached to its graph."""
        if not stage.is_last or self._loss_fn is None:
            return None
        return self._desk.find(stage.stage_index, mb_index, Kind.B, Kind.I).loss

    def _assert_unsharded(self, stage: Any) -> None:
        """Nothing: the executor waits for parameters before it calls a function."""

    def _arrives(self, kind: Kind, stage: int) -> bool:
        """Whether the input of an action comes by message."""
        ranks, step = self.stage_index_to_group_rank, {Kind.F: -1, Kind.B: 1, Kind.I: 1}.get(kind)
        if step is None or stage + step not in ranks:
            return False
        return ranks[stage] != ranks[stage + step]

    def __getattr__(self, name: str) -> Any:
        instead = _INSTEAD.get(name)
        raise AttributeError(
            f"a schedule of fullbore.pipelining has no {name!r}"
            + (f"; use {instead}" if instead else "")
        )
