"""Runs a schedule on real modules and tensors. This is where torch begins."""

from importlib.util import find_spec

from fullbore.errors import MissingExtra

if find_spec("torch") is None:
    raise MissingExtra("fullbore.runtime needs torch: pip install 'fullbore[torch]'")

from fullbore.runtime.checkpoint import load_checkpoint, save_checkpoint
from fullbore.runtime.clip import clip_grad_norm_
from fullbore.runtime.custom import ActionContext, CustomFunction
from fullbore.runtime.grad_scaler import GradScaler
from fullbore.runtime.microbatch import Replicate, Split, merge
from fullbore.runtime.output import StepOutput
from fullbore.runtime.pipeline import Pipeline
from fullbore.runtime.seeds import microbatch_seed, seeded
from fullbore.runtime.stage import Stage
from fullbore.runtime.transport import (
    LocalTransport,
    P2PTransport,
    SharedMemoryTransport,
    Transport,
)

__all__ = [
    "Pipeline",
    "Stage",
    "StepOutput",
    "ActionContext",
    "CustomFunction",
    "LocalTransport",
    "P2PTransport",
    "SharedMemoryTransport",
    "Transport",
    "Split",
    "Replicate",
    "merge",
    "clip_grad_norm_",
    "GradScaler",
    "seeded",
    "microbatch_seed",
    "save_checkpoint",
    "load_checkpoint",
]
