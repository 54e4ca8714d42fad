"""The planner's front: its arguments and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from fullbore.errors import ParameterError
from fullbore.ir import Placement, Schedule
from fullbore.plan.candidate import Candidate
from fullbore.plan.loops import warm_up
from fullbore.plan.race import Race
from fullbore.sim import Costs

Objective = Literal["makespan", "span"]
EFFORT = 4


class Progress(Protocol):
    """Told how far the search is."""

    def __call__(self, part: float, best: Candidate | None) -> None:
        """``part`` of the effort is over; the best so far, if any."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The best schedules that were found.

    Attributes:
        candidates: what fits the memory, the best first; one or more.
        bound: what no schedule on any of the placements can beat, in the objective.
        objective: ``"makespan"`` or ``"span"``.
        memory: what a rank may hold, in bytes; None: any amount.
        seed: where chance began.
        effort: the last level that all placements finished; 0 if only families were tried.
        evaluations: how many orders were tried.
        seconds: how long the search took, without ``compile_seconds``.
        compile_seconds: how long it took to get the loops ready.
        stopped: why it ended before its effort: ``"deadline"``, ``"interrupt"``, or None.
        left_out: the placements that cannot be, and why.
    """

    candidates: tuple[Candidate, ...]
    bound: float
    objective: Objective
    memory: float | None
    seed: int
    effort: int
    evaluations: int
    seconds: float
    compile_seconds: float
    stopped: str | None
    left_out: tuple[str, ...]

    @property
    def best(self) -> Candidate:
        """The first of them."""
        return self.candidates[0]

    @property
    def schedule(self) -> Schedule:
        """The best one's."""
        return self.best.schedule


def plan(
    *,
    num_ranks: int,
    num_microbatches: int,
    costs: Costs,
    memory: float | None = None,
    stages_per_rank: Sequence[int] = (1, 2, 4),
    shapes: Sequence[str] = ("loop", "vee"),
    placements: Sequence[Placement] = (),
    objective: Objective = "makespan",
    effort: int = EFFORT,
    deadline: float | None = None,
    seed: int = 0,
    on_progress: Progress = lambda part, best: None,
    compiled: bool | None = None,
) -> Plan:
    """The best schedule that can be found for costs and memory, and how good any could be.

    The same arguments give the same plan on every machine, unless the deadline cuts it short.

    Args:
        num_ranks, num_microbatches, costs: costs by stage allow only placements of as many stages.
        memory: what a rank may hold in all, in bytes; None: any amount.
        stages_per_rank, shapes: which of ``loop`` and ``vee`` (V = 2) to try; or ``placements``.
        objective: what should be short: the makespan or the span.
        effort: how many levels to search; each takes twice the time of the one before.
        deadline: seconds after which to stop with the best so far; None: never.
        seed: where chance begins.
        on_progress: told how far the search is.
        compiled: False runs the loops as they are; by default numba compiles them if it is there.

    Raises:
        ParameterError: an argument is out of range, or no schedule fits the memory.
    """
    check_effort(effort, deadline)
    _check(objective, seed)
    compile_seconds = warm_up(compiled=compiled)
    task = {"costs": costs, "memory": memory, "by_span": objective == "span", "compiled": compiled}
    race = Race(deadline, on_progress)
    for placement in _given(placements, num_ranks) or tried(num_ranks, stages_per_rank, shapes):
        race.add(placement, num_microbatches, seed=seed, **task)
    stopped = race.run(effort)
    return Plan(
        objective=objective,
        memory=memory,
        seed=seed,
        compile_seconds=compile_seconds,
        stopped=stopped,
        **race.figures(),
    )


def check_effort(effort: int, deadline: float | None) -> None:
    """Complain of what no search can spend.

    Raises:
        ParameterError: the effort is no level, or the deadline no time.
    """
    if type(effort) is not int or not 0 <= effort <= 20:
        raise ParameterError(f"plan: effort must be a whole number from 0 to 20; got {effort!r}")
    if deadline is not None and not deadline > 0:
        raise ParameterError(f"plan: deadline must be more than 0 seconds; got {deadline!r}")


def _check(objective: str, seed: int) -> None:
    if objective not in ("makespan", "span"):
        raise ParameterError(f"plan: objective must be makespan or span; got {objective!r}")
    if type(seed) is not int:
        raise ParameterError(f"plan: seed must be a whole number; got {seed!r}")


def _given(placements: Sequence[Placement], num_ranks: int) -> Sequence[Placement]:
    for placement in placements:
        if placement.num_ranks != num_ranks:
            raise ParameterError(
                f"plan: a placement is for {placement.num_ranks} ranks, not {num_ranks}: "
                f"{placement}"
            )
    return placements


def tried(num_ranks: int, stages_per_rank: Sequence[int], shapes: Sequence[str]) -> list[Placement]:
    """The placements of these shapes, with so many stages a rank.

    Raises:
        ParameterError: there is no such shape, a number is no whole one from 1 on, or no placement
            is left.
    """
    strange = next((shape for shape in shapes if shape not in ("loop", "vee")), None)
    if strange is not None:
        raise ParameterError(f"plan: a placement is loop or vee; got {strange!r}")
    found = []
    for count in dict.fromkeys(stages_per_rank):
        if "loop" in shapes or count == 1:
            found.append(Placement.loop(num_ranks, count))
        if "vee" in shapes and count == 2:
            found.append(Placement.vee(num_ranks))
    if not found:
        raise ParameterError(
            "plan: that leaves no placement; a loop has any number of stages a rank, a vee 2"
        )
    return found
