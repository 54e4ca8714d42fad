"""Whether tensors in different processes are equal, without sending them."""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def local_part(tensor: Tensor) -> Tensor:
    """What this process has of a DTensor; any other tensor is whole."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


@torch.no_grad()
def checksum(tensor: Tensor) -> Tensor:
    """Shape and contents of ``tensor`` as a few integers, the same wherever they are computed:
    sums of floats would depend on the number of threads."""
    whole = local_part(tensor.detach()).contiguous().reshape(-1)
    size = torch.tensor([*tensor.shape], dtype=torch.int64, device=whole.device)
    real = torch.view_as_real(whole).reshape(-1) if whole.is_complex() else whole
    bits = real.view(_INTEGERS[real.element_size()])
    return torch.cat([size, bits.sum(dtype=torch.int64).reshape(1)])
