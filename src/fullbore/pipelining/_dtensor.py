"""DTensors on their way from stage to stage: the local part, and what makes a DTensor of it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from fullbore.errors import ParameterError
from fullbore.runtime.tree import Tree

_MARK = "DTensors"

GetMesh = Callable[[tuple[str, ...], Any], DeviceMesh]
"""Gives the mesh with these dimension names and this layout, on this rank."""


class Carrier:
    """Lets a stage's module take and give DTensors, although local tensors travel.

    Args:
        stage: the stage's index, for errors.
        get_mesh: finds the meshes of DTensors that arrive.
        gives: whether the output goes to another stage.

    Attributes:
        seen: whether there was a DTensor yet.
    """

    def __init__(self, stage: int, get_mesh: GetMesh, *, gives: bool) -> None:
        self._stage, self._get_mesh, self._gives = stage, get_mesh, gives
        self.seen = False

    def install(self, module: nn.Module) -> list[RemovableHandle]:
        """Work on all calls of ``module``, until the handles are removed."""
        taking = module.register_forward_pre_hook(self._take, prepend=True)
        return [taking, module.register_forward_hook(self._give)] if self._gives else [taking]

    def _take(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        packed = args[0] if len(args) == 1 else None
        if not isinstance(packed, dict) or _MARK not in packed:
            return None
        self.seen = True
        leaves, structure = pytree.tree_flatten(packed["value"])
        for index, names, layout, placements, shape, stride in packed[_MARK]:
            mesh = self._get_mesh(tuple(names), pickle.loads(layout))
            if not isinstance(mesh, DeviceMesh):
                raise ParameterError(
                    f"stage {self._stage}: get_mesh gave {mesh!r} for the mesh {tuple(names)}; it "
                    "must give that rank's DeviceMesh of these dimensions"
                )
            leaves[index] = DTensor.from_local(
                leaves[index],
                mesh,
                [_read(*placement) for placement in placements],
                run_check=False,
                shape=torch.Size(shape),
                stride=tuple(stride),
            )
        value = pytree.tree_unflatten(leaves, structure)
        return tuple(value) if type(value) in (tuple, list) else (value,)

    def _give(self, _: nn.Module, __: tuple[Any, ...], output: Tree) -> Tree:
        leaves, structure = pytree.tree_flatten(output)
        found = [index for index, leaf in enumerate(leaves) if isinstance(leaf, DTensor)]
        if not found:
            return output
        self.seen = True
        described = [[index, *_describe(leaves[index])] for index in found]
        for index in found:
            leaves[index] = leaves[index].to_local()
        return {_MARK: described, "value": pytree.tree_unflatten(leaves, structure)}


def whole_loss(loss_fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``loss_fn`` with a DTensor in its result made a plain tensor, the same on all ranks."""

    def compute(*args: Any, **kwargs: Any) -> Tensor:
        loss = loss_fn(*args, **kwargs)
        return loss.full_tensor() if isinstance(loss, DTensor) else loss

    return compute


def _describe(tensor: DTensor) -> tuple[Any, ...]:
    mesh = tensor.device_mesh
    return (
        list(mesh.mesh_dim_names or ()),
        # Of a private class that has changed between versions; the ranks of a job trust each other.
        pickle.dumps(mesh._layout),
        [_write(placement) for placement in tensor.placements],
        list(tensor.shape),
        list(tensor.stride()),
    )


def _write(placement: Placement) -> list[Any]:
    # Classes derived from these say more than one number or word can.
    if type(placement) is Shard:
        return ["shard", placement.dim]
    if type(placement) is Replicate:
        return ["replicate", 0]
    if type(placement) is Partial:
        return ["partial", placement.reduce_op]
    raise ParameterError(
        f"a DTensor with the placement {placement} cannot be handed to another stage; redistribute "
        "it to Shard, Replicate or Partial, or return its to_local()"
    )


def _read(kind: str, value: Any) -> Placement:
    if kind == "shard":
        return Shard(value)
    return Replicate() if kind == "replicate" else Partial(value)
