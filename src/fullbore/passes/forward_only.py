"""What evaluation runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from fullbore.ir import Action, Form, Kind, Program, Schedule
from fullbore.passes.base import EITHER, Pass

_FORWARD = (Kind.F, Kind.SEND_F, Kind.RECV_F)
_SHARDING = (Kind.UNSHARD, Kind.RESHARD)


@dataclass(frozen=True)
class ForwardOnly(Pass):
    """Keeps every ``F`` and its traffic, in the same order, and drops the rest.

    Of an overlap or a batched pair the forward half stays. An ``UNSHARD`` and its ``RESHARD`` stay
    where an ``F`` of their stage remains between them; a stage that would be freed and gathered
    again with nothing in between stays gathered.
    """

    name: ClassVar[str] = "forward_only"
    takes: ClassVar[tuple[Form, ...]] = EITHER

    def apply(self, schedule: Schedule) -> Schedule:
        """Filter each program; the result is marked as forward-only."""
        programs = tuple(
            _without_regathers(_without_idle_unshards(_forward(program)))
            for program in schedule.programs
        )
        return replace(schedule, programs=programs, forward_only=True)


def _forward(program: Program) -> Iterator[Action]:
    for action in program:
        for leaf in action.leaves:
            if leaf.kind in _FORWARD or leaf.kind in _SHARDING:
                yield leaf


def _without_idle_unshards(actions: Iterable[Action]) -> Program:
    """Without each UNSHARD and its RESHARD that have no F of their stage in between."""
    kept: list[Action | None] = []
    unused: dict[int, int] = {}  # where an UNSHARD stands that no F has used yet
    for action in actions:
        kept.append(action)
        if action.kind is Kind.UNSHARD:
            unused[action.stage] = len(kept) - 1
        elif action.kind is Kind.F:
            unused.pop(action.stage, None)
        elif action.kind is Kind.RESHARD and action.stage in unused:
            kept[unused.pop(action.stage)] = kept[-1] = None
    return tuple(action for action in kept if action is not None)


def _without_regathers(actions: Iterable[Action]) -> Program:
    """Without each RESHARD that the same stage's UNSHARD follows before anything needs the room."""
    kept: list[Action | None] = []
    freed: dict[int, int] = {}  # where a RESHARD stands that might be undone
    for action in actions:
        kept.append(action)
        if action.kind is Kind.RESHARD:
            freed[action.stage] = len(kept) - 1
        elif action.kind is Kind.UNSHARD and action.stage in freed:
            kept[freed.pop(action.stage)] = kept[-1] = None
        elif action.kind in (Kind.F, Kind.UNSHARD):
            freed.clear()
    return tuple(action for action in kept if action is not None)
