"""Do the stages that a rank holds fit the schedule that it is to run?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fullbore.errors import ParameterError
from fullbore.ir import Schedule


def check_local_stages(schedule: Schedule, rank: int, stages: Iterable[int]) -> None:
    """Make sure that a rank holds exactly the stages that the schedule's placement gives it.

    Args:
        schedule: the schedule to run.
        rank: which rank holds them.
        stages: the indices of the stages, in any order.

    Raises:
        ParameterError: a stage is missing, is held twice, does not exist, or belongs to another
            rank; or there is no such rank.
    """
    name = schedule.name or "schedule"
    if not 0 <= rank < schedule.num_ranks:
        raise ParameterError(
            f"{name}: there is no rank {rank}; ranks are 0..{schedule.num_ranks - 1}"
        )
    wanted, held = schedule.placement.stages_of(rank), Counter(stages)
    faults = [f"stage {stage} is missing" for stage in wanted if stage not in held]
    for stage, times in sorted(held.items()):
        if not 0 <= stage < schedule.num_stages:
            faults.append(f"stage {stage} does not exist")
        elif stage not in wanted:
            faults.append(f"stage {stage} belongs to rank {schedule.placement.ranks[stage]}")
        elif times > 1:
            faults.append(f"stage {stage} is given {times} times")
    if faults:
        raise ParameterError(
            f"{name}: rank {rank} must hold stages {_shown(wanted)} "
            f"({schedule.placement.shape} placement), got {_shown(sorted(held.elements()))}: "
            f"{', '.join(faults)}"
        )


def _shown(stages: Iterable[int]) -> str:
    return ", ".join(map(str, stages)) or "none"
