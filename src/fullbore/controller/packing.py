"""Requests and results as bytes.

Functions and classes that another process cannot import, such as those of a script or a notebook,
travel as they are. A tensor travels as its own elements, whatever it is a view of; one of a GPU
gets to the GPU that is current where it arrives, if there is any.
"""

from __future__ import annotations

import ctypes
import io
import pickle
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn


def pack(value: Any) -> bytes:
    """``value`` as bytes.

    Raises:
        pickle.PicklingError, TypeError, AttributeError, ...: it cannot be.
    """
    buffer = io.BytesIO()
    _Packer(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def unpack(data: bytes) -> Any:
    """What ``pack`` got. Only for bytes of a process that is trusted."""
    return pickle.loads(data)


class Packed:
    """A value that was packed on its own, and is unpacked when it is needed.

    Args:
        value: anything.

    Raises:
        pickle.PicklingError, TypeError, AttributeError, ...: it cannot be packed.
    """

    def __init__(self, value: Any) -> None:
        self._data = pack(value)

    def unpacked(self) -> Any:
        """The value."""
        return unpack(self._data)


class _Packer(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle is not typed
    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind in (Tensor, nn.Parameter) and _is_simple(obj):
            value = obj.detach().contiguous()
            value = value.cpu()
            data = ctypes.string_at(value.data_ptr(), value.nbytes) if value.nbytes else b""
            is_parameter = kind is nn.Parameter
            layout = (obj.dtype, tuple(obj.shape), obj.device.type)
            return _make, (data, *layout, obj.requires_grad, is_parameter)
        return super().reducer_override(obj)


def _is_simple(tensor: Tensor) -> bool:
    # Other strides may choose other kernels, whose results differ in the last bit.
    return (
        tensor.device.type in ("cpu", "cuda")
        and tensor.layout is torch.strided
        and tensor.is_leaf
        and tensor.is_contiguous()
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.__dict__)
    )


def _make(
    data: bytes,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    device: str,
    requires_grad: bool,  # noqa: FBT001 - pickle calls by position
    is_parameter: bool,  # noqa: FBT001 - pickle calls by position
) -> Tensor:
    if data:
        tensor = torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
    else:
        tensor = torch.empty(shape, dtype=dtype)
    if device == "cuda" and torch.cuda.is_available():
        tensor = tensor.to("cuda")
    if is_parameter:
        return nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)
