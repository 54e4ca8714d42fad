"""Passes: functions from a schedule to a schedule."""

from fullbore.passes.backward import MergeBackward, SplitBackward
from fullbore.passes.base import Pass
from fullbore.passes.batch import BatchCommunication, UnbatchCommunication
from fullbore.passes.communication import InsertCommunication
from fullbore.passes.forward_only import ForwardOnly
from fullbore.passes.lowering import LOWERING, lower
from fullbore.passes.overlap import ExpandOverlap, FuseOverlap
from fullbore.passes.pipeline import parse_pipeline, run_passes
from fullbore.passes.reduce_grad import InsertReduceGrad
from fullbore.passes.sink import SinkReceives
from fullbore.passes.table import PASSES
from fullbore.passes.unshard import InsertUnshard

__all__ = [
    "LOWERING",
    "PASSES",
    "Pass",
    "lower",
    "parse_pipeline",
    "run_passes",
    "MergeBackward",
    "SplitBackward",
    "FuseOverlap",
    "ExpandOverlap",
    "ForwardOnly",
    "InsertUnshard",
    "InsertReduceGrad",
    "InsertCommunication",
    "SinkReceives",
    "BatchCommunication",
    "UnbatchCommunication",
]
