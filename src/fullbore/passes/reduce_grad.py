"""Say when each stage's gradients are complete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fullbore.ir import Action, Form, Kind, Program, Schedule
from fullbore.passes.base import Pass, has


@dataclass(frozen=True)
class InsertReduceGrad(Pass):
    """Puts ``REDUCE_GRAD`` right after the last ``B`` or ``W`` of every stage.

    As early as the gradients are complete, so that the reduction runs beside the work that is
    left and its memory is freed soonest. A forward-only schedule has nothing to reduce and stays
    as it is. Refuses a schedule that already reduces.
    """

    name: ClassVar[str] = "insert_reduce_grad"
    takes: ClassVar[tuple[Form, ...]] = (Form.COMPUTE,)

    def apply(self, schedule: Schedule) -> Schedule:
        """Insert within each program."""
        if has(schedule, Kind.REDUCE_GRAD):
            raise self.refusal(schedule, "it has REDUCE_GRAD actions already")
        if schedule.forward_only:
            return schedule
        stages_of = schedule.placement.stages_of
        return schedule.with_programs(
            [_reduced(program, stages_of(rank)) for rank, program in enumerate(schedule.programs)]
        )


def _reduced(program: Program, stages: tuple[int, ...]) -> list[Action]:
    result, pending = list(program), set(stages)
    for step in range(len(program) - 1, -1, -1):
        for leaf in reversed(program[step].leaves):
            if leaf.kind in (Kind.B, Kind.W) and leaf.stage in pending:
                pending.remove(leaf.stage)
                result.insert(step + 1, Action(leaf.stage, Kind.REDUCE_GRAD))
        if not pending:
            break
    return result
