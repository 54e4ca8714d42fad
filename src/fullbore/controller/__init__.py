"""One script drives all ranks of a pipeline."""

from importlib.util import find_spec

from fullbore.errors import MissingExtra

if find_spec("torch") is None:
    raise MissingExtra("fullbore.controller needs torch: pip install 'fullbore[torch]'")

from fullbore.controller.engine import Engine, RankLost
from fullbore.controller.host import HostedStage
from fullbore.controller.local import LocalEngine
from fullbore.controller.pipeline_parallelism import PipelineParallelism
from fullbore.controller.stages import Factory

__all__ = ["PipelineParallelism", "Factory", "HostedStage", "RankLost", "Engine", "LocalEngine"]
