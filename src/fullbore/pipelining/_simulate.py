"""Step by step: when each action would run if all took one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fullbore.errors import ParameterError
from fullbore.ir import KINDS, Form, Schedule
from fullbore.ir.deps import Dependencies
from fullbore.ir.kinds import Group
from fullbore.pipelining._actions import Order, _Action, read_action, read_order, write_action
from fullbore.verify import check


def simulate(schedule: Schedule) -> Order:
    """What each rank does at each step; None where it waits.

    An action runs in the first step in which what it needs has run, be it in the same step on
    another rank.

    Raises:
        InvalidSchedule: it can't run.
    """
    check(schedule)
    deps, done = Dependencies(schedule), set[int]()
    heads = [0] * schedule.num_ranks
    steps: Order = {rank: [] for rank in range(schedule.num_ranks)}

    def advance(rank: int) -> bool:
        action = schedule.programs[rank][heads[rank]]
        if not done.issuperset(deps.needs(action)):
            return False
        done.update(deps.gives(action))
        heads[rank] += 1
        steps[rank].append(write_action(action))
        return True

    def unfinished() -> list[int]:
        return [r for r, program in enumerate(schedule.programs) if heads[r] < len(program)]

    while waiting := unfinished():
        before = -1
        # Until nobody is freed any more by what others do in this step.
        while len(waiting) != before:
            before = len(waiting)
            waiting = [rank for rank in waiting if not advance(rank)]
        for rank in waiting:
            steps[rank].append(None)
    return steps


def _simulate_comms_compute(
    pipeline_order: Mapping[int, Sequence[Any]],
    stage_to_rank: Callable[[int], int],
    num_stages: int,
) -> Order:
    """As ``simulate``, for a pipeline order.

    Raises:
        ValueError: the order can't run, or the placement is another than ``stage_to_rank`` says.
    """
    actions = [read_action(a) for order in pipeline_order.values() for a in order if a is not None]
    leaves = [leaf for action in actions for leaf in action.leaves]
    computes = all(KINDS[leaf.kind].group is Group.COMPUTE for leaf in leaves)
    schedule = read_order(
        pipeline_order,
        form=Form.COMPUTE if computes else Form.LOWERED,
        num_microbatches=1 + max((leaf.microbatch for leaf in leaves), default=0),
        name="pipeline_order",
    )
    wanted = tuple(map(stage_to_rank, range(num_stages)))
    if schedule.placement.ranks != wanted:
        raise ParameterError(
            f"the order has its stages on ranks {schedule.placement.ranks}, stage_to_rank says "
            f"{wanted}"
        )
    return simulate(schedule)


def _format_pipeline_order(
    pipeline_order: Mapping[int, Sequence[_Action | None]], error_step_number: int | None = None
) -> str:
    """A table with a row for each step and a column for each rank."""
    columns = [
        [f"Rank {rank}", *("" if action is None else str(action) for action in actions)]
        for rank, actions in sorted(pipeline_order.items())
    ]
    height = max((len(column) for column in columns), default=1)
    digits = len(str(max(height - 2, 0)))
    names = [" " * (digits + 5), *(f"Step {step:0{digits}}" for step in range(height - 1))]
    widths = [max(map(len, column)) for column in columns]
    rows = []
    for at, name in enumerate(names):
        cells = [
            (column[at] if at < len(column) else "").ljust(width)
            for column, width in zip(columns, widths, strict=True)
        ]
        mark = (
            " <-- ERROR HERE"
            if error_step_number is not None and at == error_step_number + 1
            else ""
        )
        rows.append(f"{name}: {' '.join(cells)}{mark}" if at else f"{name}  {' '.join(cells)}")
    return "\n".join(rows) + "\n"
