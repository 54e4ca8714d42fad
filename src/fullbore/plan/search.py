"""The planner's front: all placements, level by level, as long as there is time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal, Protocol

from fullbore.errors import ParameterError
from fullbore.ir import Placement, Schedule
from fullbore.plan.candidate import Candidate
from fullbore.plan.loops import warm_up
from fullbore.plan.placed import Placed
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


class _Late(Exception):
    """The deadline has passed."""


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
    _check(effort, deadline, objective)
    compile_seconds = warm_up(compiled=compiled)
    task = {"costs": costs, "memory": memory, "by_span": objective == "span", "compiled": compiled}
    search = _Search(deadline, on_progress)
    for placement in _given(placements, num_ranks) or tried(num_ranks, stages_per_rank, shapes):
        search.add(placement, num_microbatches, seed=seed, **task)
    stopped = search.run(effort)
    return Plan(
        candidates=search.candidates(memory),
        objective=objective,
        memory=memory,
        seed=seed,
        compile_seconds=compile_seconds,
        stopped=stopped,
        **search.figures(),
    )


def _check(effort: int, deadline: float | None, objective: str) -> None:
    if type(effort) is not int or not 0 <= effort <= 20:
        raise ParameterError(f"plan: effort must be a whole number from 0 to 20; got {effort!r}")
    if deadline is not None and not deadline > 0:
        raise ParameterError(f"plan: deadline must be more than 0 seconds; got {deadline!r}")
    if objective not in ("makespan", "span"):
        raise ParameterError(f"plan: objective must be makespan or span; got {objective!r}")


def _given(placements: Sequence[Placement], num_ranks: int) -> Sequence[Placement]:
    for placement in placements:
        if placement.num_ranks != num_ranks:
            raise ParameterError(
                f"plan: a placement is for {placement.num_ranks} ranks, not {num_ranks}: "
                f"{placement}"
            )
    return placements


def tried(
    num_ranks: int, stages_per_rank: Sequence[int], shapes: Sequence[str]
) -> Iterator[Placement]:
    """The placements of these shapes, with so many stages a rank.

    Raises:
        ParameterError: there is no such shape, or a number is under 1.
    """
    strange = next((shape for shape in shapes if shape not in ("loop", "vee")), None)
    if strange is not None:
        raise ParameterError(f"plan: a placement is loop or vee; got {strange!r}")
    if num_ranks < 1 or min(stages_per_rank, default=0) < 1:
        raise ParameterError("plan: ranks and stages a rank must be 1 or more")
    for count in dict.fromkeys(stages_per_rank):
        if "loop" in shapes or count == 1:
            yield Placement.loop(num_ranks, count)
        if "vee" in shapes and count == 2:
            yield Placement.vee(num_ranks)


class _Search:
    """All placements, together."""

    def __init__(self, deadline: float | None, on_progress: Progress) -> None:
        self._begun = monotonic()
        self._end = None if deadline is None else self._begun + deadline
        self._on_progress = on_progress
        self._placed: list[Placed] = []
        self._left_out: list[str] = []
        self._finished = 0

    def add(self, placement: Placement, num_microbatches: int, *, seed: int, **task: Any) -> None:
        """Also try a placement."""
        try:
            self._placed.append(Placed(placement, num_microbatches, seed=seed, **task))
        except ParameterError as error:
            per_rank = placement.num_stages // placement.num_ranks
            self._left_out.append(f"{placement.shape}, {per_rank} a rank: {error}")

    def candidates(self, memory: float | None) -> tuple[Candidate, ...]:
        """What was found, the best first.

        Raises:
            ParameterError: nothing was.
        """
        found = sorted(self._found(), key=lambda candidate: candidate.length)
        if not found:
            raise ParameterError(
                f"plan: found no schedule that fits the memory, {memory:g}. Allow more memory, "
                "more stages a rank or more effort"
            )
        return tuple(found)

    def figures(self) -> dict[str, Any]:
        """How the search went, as fields of ``Plan``."""
        return {
            "bound": min(placed.bound for placed in self._placed),
            "effort": self._finished,
            "evaluations": sum(placed.annealer.evaluations for placed in self._placed),
            "seconds": monotonic() - self._begun,
            "left_out": tuple(self._left_out),
        }

    def run(self, effort: int) -> str | None:
        """All levels; why it stopped before that.

        Raises:
            ParameterError: there is no placement.
        """
        if not self._placed:
            raise ParameterError("plan: no placement can be: " + "; ".join(self._left_out))
        try:
            for number, placed in enumerate(self._placed, 1):
                placed.begin()
                self._tell(number / len(self._placed) / 2**effort)
            for level in range(1, effort + 1):
                chosen = self._promising(level)
                for number, placed in enumerate(chosen):
                    self._level(placed, level, (number / len(chosen), 1 / len(chosen), effort))
                self._finished = level
        except _Late:
            return "deadline"
        except KeyboardInterrupt:
            return "interrupt"
        return None

    def _level(self, placed: Placed, level: int, where: tuple[float, float, int]) -> None:
        """One level of one placement: what part of the level is over, its own part, the effort."""
        begun, share, effort = where
        try:
            for part in placed.level(level):
                done = begun + part * share
                self._tell((1 + done) * 2.0 ** (level - 1 - effort))
        finally:
            placed.settle()

    def _promising(self, level: int) -> list[Placed]:
        """What may become the best, and of that half as many at each level."""
        best = min(placed.length for placed in self._placed)
        left = [placed for placed in self._placed if not placed.done and placed.bound < best]
        left.sort(key=lambda placed: placed.length)
        return left[: max(1, len(self._placed) >> (level - 1))]

    def _found(self) -> list[Candidate]:
        return [candidate for placed in self._placed for candidate in placed.candidates]

    def _tell(self, part: float) -> None:
        best = min(self._found(), key=lambda candidate: candidate.length, default=None)
        self._on_progress(part, best)
        if self._end is not None and monotonic() > self._end:
            raise _Late
