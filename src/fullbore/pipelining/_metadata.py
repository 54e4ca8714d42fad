"""Tensors that a stage declares beforehand: what it expects and what it promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fullbore.errors import ParameterError
from fullbore.runtime.tree import Tree, is_differentiable, tensors


class PipeliningMetadataError(ParameterError, RuntimeError):
    """A stage got or gave other tensors than it declared."""


class TensorMeta(NamedTuple):
    """Shape and dtype of a tensor that does not exist yet."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def make(self, device: torch.device | str | None, *, training: bool) -> Tensor:
        """A tensor of zeros like it, which asks for a gradient where it can."""
        tensor = torch.zeros(self.shape, dtype=self.dtype, device=device)
        return tensor.requires_grad_(training and is_differentiable(tensor))

    def __str__(self) -> str:
        return f"{list(self.shape)} {str(self.dtype).removeprefix('torch.')}"


Metas = tuple[TensorMeta, ...]


def metas(values: Any, *, what: str) -> Metas | None:
    """Those of an example tensor, a list or tuple of them, or of torch's own records of them.

    Raises:
        ParameterError: an element is neither.
    """
    if values is None:
        return None
    found = []
    for value in values if isinstance(values, list | tuple) else (values,):
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if shape is None or not isinstance(dtype, torch.dtype):
            raise ParameterError(
                f"{what} must be a tensor or a tuple of tensors, got a {type(value).__qualname__}"
            )
        found.append(TensorMeta(tuple(shape), dtype))
    return tuple(found)


def watch(
    module: nn.Module, stage: int, *, inputs: Metas | None, outputs: Metas | None
) -> list[RemovableHandle]:
    """Check what ``module`` is called with and returns, until the handles are removed.

    The first call only: later microbatches may be of other sizes.
    """
    checked: set[str] = set()

    def check(what: str, declared: Metas, value: Tree) -> None:
        if what in checked:
            return
        checked.add(what)
        compare(tensors(value), declared, what=f"stage {stage}: {what}")

    def before(_: nn.Module, args: tuple[Any, ...]) -> None:
        check("input_args", inputs or (), args)

    def after(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        check("output_args", outputs or (), output)

    handles = []
    if inputs is not None:
        handles.append(module.register_forward_pre_hook(before))
    if outputs is not None:
        handles.append(module.register_forward_hook(after))
    return handles


def compare(found: Sequence[Tensor], declared: Metas, *, what: str) -> None:
    """Make sure that tensors are as declared.

    Raises:
        PipeliningMetadataError: they are not.
    """
    have = [TensorMeta(tuple(t.shape), t.dtype) for t in found]
    if have == list(declared):
        return
    raise PipeliningMetadataError(
        f"{what} declares {_shown(declared)}, but the first microbatch has {_shown(have)}; declare "
        "what one microbatch has, or leave the argument out: nothing needs it"
    )


def _shown(values: Sequence[TensorMeta]) -> str:
    return ", ".join(map(str, values)) or "no tensor"


Builder = Callable[[], Callable[..., object]]
