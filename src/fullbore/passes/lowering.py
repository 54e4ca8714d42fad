"""From the order of computation to everything a rank does."""

from __future__ import annotations

from fullbore.errors import ParameterError
from fullbore.ir import Form, Schedule
from fullbore.passes.base import Pass
from fullbore.passes.batch import BatchCommunication
from fullbore.passes.communication import InsertCommunication
from fullbore.passes.pipeline import run_passes
from fullbore.passes.reduce_grad import InsertReduceGrad
from fullbore.passes.sink import SinkReceives
from fullbore.passes.unshard import InsertUnshard, Lookahead

LOWERING: tuple[type[Pass], ...] = (
    InsertUnshard,  # only if the stages are sharded
    InsertReduceGrad,  # only if something has to happen once a stage's gradients are complete
    InsertCommunication,
    SinkReceives,  # only if asked for
    BatchCommunication,  # only if asked for
)


def lower(
    schedule: Schedule,
    *,
    shard: bool = False,
    max_active_stages: int | None = None,
    lookahead: Lookahead = None,
    reduce_grad: bool | None = None,
    sink: bool = False,
    batch: bool = False,
) -> Schedule:
    """The schedule in ``LOWERED`` form: with the messages, and whatever else is asked for.

    Args:
        schedule: in ``COMPUTE`` form.
        shard: the stages' parameters are sharded (FSDP): say when to gather and free them.
        max_active_stages, lookahead: the options of ``InsertUnshard``, which see; only with
            ``shard``. By default 3 stages are held and all of them gathered ahead.
        reduce_grad: say when a stage's gradients are complete, to be reduced across replicas. By
            default if ``shard``.
        sink: receive as late as possible instead of as early as possible.
        batch: pair neighbouring sends and receives.

    Raises:
        ParameterError: it is no Schedule, or lowered already, or an option makes no sense.
        InvalidSchedule: the schedule is not valid.
        PassError: a pass refuses the schedule.
    """
    if not isinstance(schedule, Schedule):
        raise ParameterError(f"lower: takes a Schedule, got a {type(schedule).__name__}")
    if schedule.form is Form.LOWERED:
        raise ParameterError(
            f"lower: {schedule.name or 'the schedule'} is lowered already; use it as it is, "
            "or apply single passes (run_passes, --pipeline)"
        )
    if not shard and (max_active_stages, lookahead) != (None, None):
        raise ParameterError("lower: max_active_stages and lookahead need shard=True")
    reduces = shard if reduce_grad is None else reduce_grad
    held = InsertUnshard.max_active_stages if max_active_stages is None else max_active_stages
    wanted: dict[type[Pass], Pass | None] = {
        InsertUnshard: InsertUnshard(held, lookahead) if shard else None,
        InsertReduceGrad: InsertReduceGrad() if reduces else None,
        InsertCommunication: InsertCommunication(),
        SinkReceives: SinkReceives() if sink else None,
        BatchCommunication: BatchCommunication() if batch else None,
    }
    pipeline = [p for p in map(wanted.__getitem__, LOWERING) if p is not None]
    return run_passes(schedule, pipeline)
