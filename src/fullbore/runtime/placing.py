"""What a process must bring: a transport, a loss function, and the right stages."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fullbore.errors import ParameterError
from fullbore.ir import Schedule
from fullbore.runtime.stage import Stage
from fullbore.verify import check_local_stages


def check_tools(transport: object, loss_fn: object) -> None:
    """Make sure that these can be what they are given as.

    Raises:
        ParameterError: the transport carries no messages, or the loss function cannot be called.
    """
    if not hasattr(transport, "connect"):
        raise ParameterError(
            f"the transport must be a Transport, got a {type(transport).__qualname__}; "
            "LocalTransport() plays all ranks in this process, P2PTransport(group) those of a "
            "process group"
        )
    if loss_fn is not None and not callable(loss_fn):
        raise ParameterError(
            f"loss_fn must be a function of output and target, got a {type(loss_fn).__qualname__}"
        )


def place(stages: Sequence[Stage], schedule: Schedule, ranks: Collection[int]) -> dict[int, Stage]:
    """The stages of a process that plays ``ranks``, by index.

    Raises:
        ParameterError: they are not those that the schedule places there.
    """
    for stage in stages:
        kind: type = type(stage)
        if not issubclass(kind, Stage):
            raise ParameterError(
                f"the stages must be Stage objects, got a {kind.__qualname__}; wrap each "
                "module: Stage(module, index, num_stages)"
            )
    placed = {stage.index: stage for stage in stages}
    if len(placed) != len(stages):
        raise ParameterError(f"a stage index is given twice: {[s.index for s in stages]}")
    wrong = next((s for s in stages if s.num_stages != schedule.num_stages), None)
    if wrong is not None:
        raise ParameterError(f"{wrong} in a schedule of {schedule.num_stages} stages")
    for rank in ranks:
        own = [s for s in placed if schedule.placement.ranks[s] == rank]
        check_local_stages(schedule, rank, own if len(ranks) > 1 else list(placed))
    return dict(sorted(placed.items()))
