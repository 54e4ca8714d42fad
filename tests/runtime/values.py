"""Values that stages may exchange, and whether one arrived as it was sent."""

import collections
import dataclasses
import enum
from typing import NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree


class Packed(NamedTuple):
    hidden: torch.Tensor
    offsets: tuple[int, ...]


@dataclasses.dataclass
class Registered:
    hidden: torch.Tensor
    scale: float


class Colour(enum.Enum):
    RED = 1


pytree.register_dataclass(Registered)

X = torch.arange(6.0).reshape(2, 3)
VALUES = {
    "tensor": X,
    "tuple": (X, torch.arange(3)),
    "one tuple": (X,),
    "empty tuple": (),
    "list": [X, X + 1],
    "dict": {"b": X, "a": [torch.tensor(1.5), None]},
    "ordered dict": collections.OrderedDict(z=X, y=2),
    "named tuple": Packed(X, (0, 2)),
    "plain only": None,
    "plain leaves": (X, None, True, 1, 1.0, -0.0, "text", b"bytes", 1j, torch.float16, Colour.RED),
    "0-dim": torch.tensor(3.0),
    "empty": torch.empty(0, 3),
    "empty beside full": (torch.empty(2, 0), X, torch.empty(0)),
    "transposed": X.t(),
    "expanded": torch.tensor(2.0).expand(3, 2),
    "sliced": torch.arange(20.0).reshape(4, 5)[:, 1:3],
    "many dimensions": torch.arange(128.0).reshape((2,) * 7),
    "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "parameter": nn.Parameter(torch.ones(2)),
}
DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def same(got: object, sent: object) -> bool:
    """Equal structure, types, plain values and tensors, down to dtype and requires_grad."""
    got_leaves, got_spec = pytree.tree_flatten(got)
    sent_leaves, sent_spec = pytree.tree_flatten(sent)
    return got_spec == sent_spec and all(map(same_leaf, got_leaves, sent_leaves))


def same_leaf(got: object, sent: object) -> bool:
    if not isinstance(sent, torch.Tensor):
        return type(got) is type(sent) and repr(got) == repr(sent)
    return (
        isinstance(got, torch.Tensor)
        and got.dtype == sent.dtype
        and got.shape == sent.shape
        and got.requires_grad == sent.requires_grad
        and got.is_leaf
        and torch.equal(got.detach().cpu().to(torch.complex128), sent.detach().to(torch.complex128))
    )
