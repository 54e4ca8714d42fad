"""All passes, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fullbore.passes.backward import MergeBackward, SplitBackward
from fullbore.passes.base import Pass
from fullbore.passes.batch import BatchCommunication, UnbatchCommunication
from fullbore.passes.communication import InsertCommunication
from fullbore.passes.forward_only import ForwardOnly
from fullbore.passes.overlap import ExpandOverlap, FuseOverlap
from fullbore.passes.reduce_grad import InsertReduceGrad
from fullbore.passes.sink import SinkReceives
from fullbore.passes.unshard import InsertUnshard

_ALL: tuple[type[Pass], ...] = (
    MergeBackward,
    SplitBackward,
    FuseOverlap,
    ExpandOverlap,
    ForwardOnly,
    InsertUnshard,
    InsertReduceGrad,
    InsertCommunication,
    SinkReceives,
    BatchCommunication,
    UnbatchCommunication,
)

PASSES: Mapping[str, type[Pass]] = MappingProxyType({each.name: each for each in _ALL})
