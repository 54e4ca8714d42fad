"""Stages with the signature of torch.distributed.pipelining's."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.pipelining.stage as theirs
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fullbore.errors import ParameterError
from fullbore.ir import Kind
from fullbore.pipelining._custom import (
    Desk,
    HandedOver,
    check_delivered,
    check_loss,
    compute_forward,
)
from fullbore.pipelining._dtensor import Carrier, GetMesh
from fullbore.pipelining._metadata import (
    Builder,
    Metas,
    PipeliningMetadataError,
    metas,
    watch,
)
from fullbore.pipelining._traced import wire
from fullbore.runtime import Stage
from fullbore.runtime.tree import Tree

__all__ = ["PipelineStage", "PipeliningMetadataError", "build_stage"]

_INSTEAD = {
    "fwd_cache": "ctx.deliver_output(output)",
    "bwd_cache": "ctx.deliver_gradients(gradients)",
    "output_chunks": "ctx.deliver_output(output), and return_outputs=True of step()",
    "backward_state": "ctx.state",
    "dw_runner": "ctx.state",
}


class _PipelineStageBase:
    """What stages have in common. Within a custom function, its methods work as torch's do; nobody
    needs to call them elsewhere.

    Attributes:
        submod: the module; it may be replaced until the first step.
        stage_index, num_stages: where it stands.
        group, group_rank, group_size: the ranks of the pipeline; a group of one where
            torch.distributed is not initialised.
        has_backward: whether the schedule trains; it sets it.
        stage_index_to_group_rank: the schedule's placement; it sets it.
    """

    def __init__(
        self,
        submodule: nn.Module,
        stage_index: int,
        num_stages: int,
        device: torch.device | str | None,
        group: dist.ProcessGroup | None = None,
        dw_builder: Builder | None = None,
    ) -> None:
        if not 0 <= stage_index < num_stages:
            raise ParameterError(f"stage {stage_index} is none of 0..{num_stages - 1}")
        self.submod = submodule
        self.stage_index, self.num_stages = stage_index, num_stages
        self.device, self.group, self.dw_builder = device, group, dw_builder
        grouped = dist.is_available() and dist.is_initialized()
        self.group_rank = dist.get_rank(group) if grouped else 0
        self.group_size = dist.get_world_size(group) if grouped else 1
        if self.group_size > num_stages:
            raise RuntimeError(
                f"a group of {self.group_size} ranks has no use for {num_stages} stages: every "
                "rank needs one at least"
            )
        self.has_backward = False
        self.log_prefix = f"[Stage {stage_index}]"
        self.stage_index_to_group_rank = {s: s % self.group_size for s in range(num_stages)}
        self.declared_inputs: Metas | None = None
        self.declared_outputs: Metas | None = None
        self.get_mesh: GetMesh | None = None
        self._carrier: Carrier | None = None
        self._desk = Desk()

    @property
    def is_first(self) -> bool:
        """Whether it is the pipeline's first stage."""
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        """Whether it is the pipeline's last stage."""
        return self.stage_index == self.num_stages - 1

    def forward_one_chunk(
        self,
        fwd_chunk_id: int,
        args: tuple[Tree, ...],
        kwargs: dict[str, Tree] | None = None,
        save_forward_output: bool = True,
    ) -> Tree:
        """F of the action that a custom function computes; gives the stage's output."""
        context = self._desk.find(self.stage_index, fwd_chunk_id, Kind.F)
        return compute_forward(context, args if self.is_first else None, kwargs or {})

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Tensor | None = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        """B, or with ``full_backward=False`` I, of the action that a custom function computes."""
        kind = Kind.B if full_backward else Kind.I
        context = self._desk.find(self.stage_index, bwd_chunk_id, kind)
        check_loss(context, loss)
        context.run()

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """W of the action that a custom function computes."""
        self._desk.find(self.stage_index, bwd_chunk_id, Kind.W).run()

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """REDUCE_GRAD of the action that a custom function computes. The factor is in the gradients
        already: losses are weighed before backward."""
        self._desk.find(self.stage_index, None, Kind.REDUCE_GRAD).run()

    def scale_grads(self, grad_scale_factor: int) -> None:
        """Within a step: nothing, as losses are weighed before backward. Elsewhere: divide all
        gradients of the stage."""
        if self._desk.busy or grad_scale_factor == 1:
            return
        for parameter in self.submod.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(grad_scale_factor)

    def set_local_fwd_input(self, prev_stage_outputs: Tree, mb_index: int) -> None:
        """Nothing: the executor hands the output of the stage before over."""
        context = self._desk.find(self.stage_index - 1, mb_index, Kind.F)
        check_delivered(context, prev_stage_outputs, what="set_local_fwd_input")

    def get_local_bwd_output(self, mb_index: int) -> HandedOver:
        """A token for ``set_local_bwd_input``."""
        self._desk.find(self.stage_index, mb_index, Kind.B, Kind.I)
        return HandedOver.of(self.stage_index, mb_index)

    def set_local_bwd_input(self, next_stage_bwd_outputs: tuple[Any, ...], mb_index: int) -> None:
        """Nothing: the executor hands the gradients over.

        Raises:
            ParameterError: they are not what ``get_local_bwd_output`` of the next stage gave.
        """
        token, wanted = next_stage_bwd_outputs, (self.stage_index + 1, mb_index)
        if not isinstance(token, HandedOver) or (token.stage, token.microbatch) != wanted:
            raise ParameterError(
                "set_local_bwd_input takes what get_local_bwd_output of the next stage gave for "
                "the same microbatch; other gradients go through ctx.deliver_gradients(gradients)"
            )

    def clear_runtime_states(self) -> None:
        """Nothing: no state outlives a step."""

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> tuple[Tree, ...]:
        return self._desk.find(self.stage_index, fwd_chunk_id, Kind.F).args

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> tuple[Tensor | None, ...]:
        found = self._desk.find(self.stage_index, bwd_chunk_id, Kind.B, Kind.I)
        return found.output_gradients

    def __getattr__(self, name: str) -> Any:
        instead = _INSTEAD.get(name)
        raise AttributeError(
            f"a stage of fullbore.pipelining has no {name!r}"
            + (f"; within a custom function use {instead}" if instead else "")
        )

    def _module(self) -> nn.Module:
        """What the schedule calls."""
        return self.submod

    def make(self) -> Stage:
        """The stage as the runtime knows it."""
        # The module stays where it is, as with torch: it may be sharded, or have no memory yet.
        return Stage(self._module(), self.stage_index, self.num_stages, dw_builder=self.dw_builder)

    def attend(self, *, first: bool) -> list[RemovableHandle]:
        """Let the module take and give DTensors, until the handles are removed.

        Args:
            first: it is the first run: compare the first microbatch with what was declared, and see
                whether there are any DTensors.
        """
        handles: list[RemovableHandle] = []
        if first:
            declared = {"inputs": self.declared_inputs, "outputs": self.declared_outputs}
            handles += watch(self.submod, self.stage_index, **declared)
            if self.get_mesh is not None:
                self._carrier = Carrier(self.stage_index, self.get_mesh, gives=not self.is_last)
        if self._carrier is not None and (first or self._carrier.seen):
            handles += self._carrier.install(self.submod)
        return handles


class PipelineStage(_PipelineStageBase):
    """A stage of a model that was cut by hand.

    Args:
        submodule: the piece of the model. It is not moved.
        stage_index, num_stages: where it stands.
        device: where it runs.
        input_args, output_args: what one microbatch looks like: a tensor, on any device, or a tuple
            of them. Nothing needs it but a dry run; the first microbatch is compared with it.
        output_grads, input_grads: the same of gradients, which are as their tensors are.
        group: the ranks of the pipeline; all ranks if None.
        dw_builder: for modules that put off their weights' gradients by themselves; see
            ``fullbore.runtime.Stage``.
        get_mesh: ``get_mesh(names, layout)`` gives this rank's mesh with these dimensions. With it,
            DTensors can be handed from stage to stage; all stages need it then.

    Raises:
        ParameterError: the index is out of range.
        RuntimeError: the group has more ranks than there are stages.
        PipeliningMetadataError: gradients are declared in other shapes than their tensors.
    """

    def __init__(
        self,
        submodule: nn.Module,
        stage_index: int,
        num_stages: int,
        device: torch.device | str | None,
        input_args: Tensor | tuple[Tensor, ...] | None = None,
        output_args: Tensor | tuple[Tensor, ...] | None = None,
        output_grads: Tensor | tuple[Tensor | None, ...] | None = None,
        input_grads: Tensor | tuple[Tensor | None, ...] | None = None,
        group: dist.ProcessGroup | None = None,
        dw_builder: Builder | None = None,
        get_mesh: GetMesh | None = None,
    ) -> None:
        super().__init__(submodule, stage_index, num_stages, device, group, dw_builder)
        self.get_mesh = get_mesh
        self.declared_inputs = metas(input_args, what="input_args")
        self.declared_outputs = metas(output_args, what="output_args")
        _check_gradients(
            self.declared_inputs, input_grads, what=f"stage {stage_index}: input_grads"
        )
        _check_gradients(
            self.declared_outputs, output_grads, what=f"stage {stage_index}: output_grads"
        )


class _PipelineStage(_PipelineStageBase):
    """A stage of a traced model.

    Raises:
        ParameterError: the index is out of range, or the graph has a skip connection.
    """

    def __init__(
        self,
        stage_module: nn.Module,
        stage_index: int,
        pipe_info: Any,
        device: torch.device | str | None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(stage_module, stage_index, pipe_info.num_stages, device, group)
        self.pipe_info = pipe_info
        wire(stage_module, stage_index, pipe_info.graph)
        if not any(parameter.is_meta for parameter in stage_module.parameters()):
            stage_module.to(device)

    def _module(self) -> nn.Module:
        return wire(self.submod, self.stage_index, self.pipe_info.graph)


class _Adopted(_PipelineStageBase):
    """A stage object of torch's, through its public attributes."""

    def __init__(self, source: Any) -> None:
        self.source = source
        super().__init__(
            source.submod,
            source.stage_index,
            source.num_stages,
            getattr(source, "device", None),
            getattr(source, "group", None),
            getattr(source, "dw_builder", None),
        )
        self.get_mesh = getattr(getattr(source, "_mesh_cache", None), "_get_mesh_cb", None)
        declared = getattr(source, "_user_meta", None)
        self.declared_inputs = metas(getattr(declared, "inputs", None), what="input_args")
        self.declared_outputs = metas(getattr(declared, "outputs", None), what="output_args")
        self._module()

    @property
    def submod(self) -> nn.Module:
        """The stage's module, whatever it is now."""
        module: nn.Module = self.source.submod
        return module

    @submod.setter
    def submod(self, module: nn.Module) -> None:
        self.source.submod = module

    def _module(self) -> nn.Module:
        traced = getattr(self.source, "pipe_info", None)
        return self.submod if traced is None else wire(self.submod, self.stage_index, traced.graph)


def build_stage(
    stage_module: nn.Module,
    stage_index: int,
    pipe_info: Any,
    device: torch.device | str,
    group: dist.ProcessGroup | None = None,
) -> _PipelineStage:
    """A stage of a traced model, of ``pipe.get_stage_module(stage_index)`` and ``pipe.info()``.

    The module is moved to ``device``. What ``pipe.build_stage`` gives can be used as well.

    Raises:
        ParameterError: the index is out of range, or the graph has a skip connection.
    """
    return _PipelineStage(stage_module, stage_index, pipe_info, device, group)


def adopt(stage: Any) -> _PipelineStageBase:
    """One of our stages, of one of ours or of torch's.

    Raises:
        ParameterError: it is neither.
    """
    if isinstance(stage, _PipelineStageBase):
        return stage
    lacking = [n for n in ("submod", "stage_index", "num_stages") if not hasattr(stage, n)]
    if lacking:
        raise ParameterError(
            f"a {type(stage).__qualname__} is no stage: it has no {lacking[0]}; make a "
            "PipelineStage(module, stage_index, num_stages, device) of it"
        )
    return _Adopted(stage)


def _check_gradients(declared: Metas | None, gradients: Any, *, what: str) -> None:
    if declared is None or gradients is None:
        return
    given = gradients if isinstance(gradients, list | tuple) else (gradients,)
    fits = len(given) == len(declared) and all(
        gradient is None or tuple(gradient.shape) == meta.shape
        for gradient, meta in zip(given, declared, strict=True)
    )
    if not fits:
        shapes = [None if g is None else tuple(g.shape) for g in given]
        raise PipeliningMetadataError(
            f"{what} declares {shapes}, its tensors {[meta.shape for meta in declared]}"
        )


# Code that still imports a class from torch, to ask what a stage is, gets the same answer.
theirs._PipelineStageBase.register(_PipelineStageBase)
theirs.PipelineStage.register(PipelineStage)
