"""Say when the parameters of sharded stages are gathered and freed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fullbore.errors import ParameterError
from fullbore.ir import Action, Form, Kind, Program, Schedule
from fullbore.passes.base import Pass, has

Lookahead = int | tuple[int, ...] | Literal["auto"] | None


@dataclass(frozen=True)
class InsertUnshard(Pass):
    """Puts ``UNSHARD`` before a stage's parameters are needed and ``RESHARD`` when they can go.

    At every step a rank looks at the stages it computes next, counting each once. Those within
    ``max_active_stages`` stay gathered, all others are freed; those within ``lookahead`` are
    gathered if they are not yet. At the end everything is freed. An overlap is never cut, so it
    may hold one stage more than either number says.

    Attributes:
        max_active_stages: how many stages a rank keeps gathered. Three hold one forward, one
            backward and one on its way.
        lookahead: how many stages ahead a gather starts, at most ``max_active_stages``: one number,
            one a rank, or ``"auto"`` for rank + 2, which is about what the wait for a rank's first
            input hides. None gathers as many as may be held. It changes when gathers start, not
            how many there are nor when they are freed.

    Raises:
        ParameterError: a number is under 1.
    """

    name: ClassVar[str] = "insert_unshard"
    takes: ClassVar[tuple[Form, ...]] = (Form.COMPUTE,)

    max_active_stages: int = 3
    lookahead: Lookahead = None

    def __post_init__(self) -> None:
        if not _is_positive(self.max_active_stages):
            raise ParameterError(
                f"{self.name}: max_active_stages must be a whole number of at least 1, "
                f"got {self.max_active_stages!r}"
            )
        ahead = self.lookahead
        numbers = ahead if isinstance(ahead, tuple) and ahead else (ahead,)
        if ahead not in (None, "auto") and not all(map(_is_positive, numbers)):
            raise ParameterError(
                f"{self.name}: lookahead must be a whole number of at least 1, one a rank "
                f"(2/3/4/4), or auto; got {ahead!r}"
            )

    def apply(self, schedule: Schedule) -> Schedule:
        """Insert within each program."""
        if has(schedule, Kind.UNSHARD):
            raise self.refusal(schedule, "it has UNSHARD actions already")
        if isinstance(self.lookahead, tuple) and len(self.lookahead) != schedule.num_ranks:
            raise self.refusal(
                schedule,
                f"lookahead has {len(self.lookahead)} numbers for {schedule.num_ranks} ranks",
            )
        return schedule.with_programs(
            [
                _sharded(program, self.max_active_stages, self._distance(rank))
                for rank, program in enumerate(schedule.programs)
            ]
        )

    def _distance(self, rank: int) -> int:
        match self.lookahead:
            case None:
                wanted = self.max_active_stages
            case "auto":
                # Newer torch's estimate: while rank r waits about r forwards for its first input,
                # r + 1 gathers complete if one costs as much as a forward, and one more overlaps.
                wanted = rank + 2
            case tuple() as numbers:
                wanted = numbers[rank]
            case int() as wanted:
                pass
        return min(wanted, self.max_active_stages)


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


Window = tuple[tuple[int, ...], tuple[int, ...]]  # stages to keep, stages to start gathering


def _sharded(program: Program, keep: int, ahead: int) -> list[Action]:
    gathered: set[int] = set()
    result: list[Action] = []
    previous: Window | None = None
    for action, window in zip(program, _windows(program, keep, ahead), strict=True):
        if window is not previous:
            previous, (kept, started) = window, window
            leaving = sorted(gathered.difference(kept))
            coming = [stage for stage in started if stage not in gathered]
            result += [Action(stage, Kind.RESHARD) for stage in leaving]
            result += [Action(stage, Kind.UNSHARD) for stage in coming]
            gathered = gathered.difference(leaving).union(coming)
        result.append(action)
    return result + [Action(stage, Kind.RESHARD) for stage in sorted(gathered)]


def _windows(program: Program, keep: int, ahead: int) -> list[Window]:
    """For each step the stages that are used next, the step's own first.

    Read backwards, the order of next use changes only at the front: the stage used now moves there.
    Where it came from inside both windows, they hold the same stages as before.
    """
    order: list[int] = []  # by next use
    uses: dict[int, int] = {}  # where that is
    fused = any(action.parts for action in program)
    windows: list[Window] = []
    for step in range(len(program) - 1, -1, -1):
        action = program[step]
        changed = fused or step == 0
        for leaf in reversed(action.leaves) if fused else (action,):
            stage = leaf.stage
            depth = order.index(stage) if stage in uses else len(order)
            changed |= depth >= ahead or depth == len(order)
            del order[depth : depth + 1]
            order.insert(0, stage)
            uses[stage] = step
        if changed:
            windows.append((_first(order, uses, keep), _first(order, uses, ahead)))
        else:
            windows.append(windows[-1])
    return windows[::-1]


def _first(order: list[int], uses: dict[int, int], count: int) -> tuple[int, ...]:
    """The first ``count`` stages, and the next one if the same overlap uses it."""
    if count < len(order) and uses[order[count]] == uses[order[count - 1]]:
        count += 1
    return tuple(order[:count])
