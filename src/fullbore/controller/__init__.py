"""One script drives all ranks of a pipeline."""

from importlib.util import find_spec

from fullbore.errors import MissingExtra

if find_spec("torch") is None:
    raise MissingExtra("fullbore.controller needs torch: pip install 'fullbore[torch]'")

from fullbore.controller.engine import Engine, RankLost
from fullbore.controller.helpers import (
    add_sys_path_impl,
    build_loss_list,
    build_module_chunk,
    build_optimizer_chunk,
    build_pp_loss_layer,
    get_loss_impl,
    get_parameter,
    optimizer_step,
    optimizer_zero_grad,
    run_backward_impl,
    run_forward_impl,
)
from fullbore.controller.host import HostedStage
from fullbore.controller.local import LocalEngine
from fullbore.controller.pipeline_parallelism import PipelineParallelism
from fullbore.controller.stages import Factory
from fullbore.controller.stepping import Stepping

__all__ = [
    "PipelineParallelism",
    "Stepping",
    "Factory",
    "HostedStage",
    "RankLost",
    "Engine",
    "LocalEngine",
    "add_sys_path_impl",
    "build_loss_list",
    "build_module_chunk",
    "build_optimizer_chunk",
    "build_pp_loss_layer",
    "get_loss_impl",
    "get_parameter",
    "optimizer_step",
    "optimizer_zero_grad",
    "run_backward_impl",
    "run_forward_impl",
]
