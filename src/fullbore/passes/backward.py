"""Join and split the two halves of a backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from fullbore.ir import Action, Form, Kind, Program, Schedule, fuse
from fullbore.passes.base import Pass


@dataclass(frozen=True)
class MergeBackward(Pass):
    """An ``I`` directly followed by its own ``W`` becomes a ``B``.

    A split that nothing uses only costs time: a whole backward is one walk of the graph.
    """

    name: ClassVar[str] = "merge_backward"
    takes: ClassVar[tuple[Form, ...]] = (Form.COMPUTE,)

    def apply(self, schedule: Schedule) -> Schedule:
        """Merge within each program."""
        return schedule.with_programs([_merged(program) for program in schedule.programs])


@dataclass(frozen=True)
class SplitBackward(Pass):
    """Every ``B`` becomes ``I`` and ``W``.

    The ``W`` follows directly; after an overlap that held the ``B``, it follows the overlap.
    Gradients can then be sent on before the weights' share is computed.
    """

    name: ClassVar[str] = "split_backward"
    takes: ClassVar[tuple[Form, ...]] = (Form.COMPUTE,)

    def apply(self, schedule: Schedule) -> Schedule:
        """Split within each program."""
        return schedule.with_programs([tuple(_halves(program)) for program in schedule.programs])


def _merged(program: Program) -> list[Action]:
    merged: list[Action] = []
    for action in program:
        stage, kind, microbatch, _ = action
        if kind is Kind.W and merged and merged[-1] == (stage, Kind.I, microbatch, ()):
            merged[-1] = Action(stage, Kind.B, microbatch)
        else:
            merged.append(action)
    return merged


def _halves(program: Program) -> Iterator[Action]:
    for action in program:
        whole = [part for part in action.leaves if part.kind is Kind.B]
        if not whole:
            yield action
            continue
        leaves = [part._replace(kind=Kind.I) if part in whole else part for part in action.leaves]
        yield fuse(action.kind, *leaves) if action.parts else leaves[0]
        yield from (part._replace(kind=Kind.W) for part in whole)
