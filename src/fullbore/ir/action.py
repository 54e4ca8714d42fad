"""One entry of a rank's program."""

from __future__ import annotations

from typing import NamedTuple

from fullbore.ir.kinds import KINDS, Kind


class Action(NamedTuple):
    """A piece of work: ``str(action)`` is its text in the ``torch`` dialect.

    Attributes:
        stage: the stage it belongs to; -1 for a fused action, whose parts say.
        kind: what it does.
        microbatch: which microbatch; -1 for kinds that have none.
        parts: the actions that a fused action is made of, in the order they are written.
    """

    stage: int
    kind: Kind
    microbatch: int = -1
    parts: tuple[Action, ...] = ()

    @property
    def leaves(self) -> tuple[Action, ...]:
        """The parts of a fused action; the action itself otherwise."""
        return self.parts or (self,)

    def __str__(self) -> str:
        if KINDS[self.kind].fused:
            return f"({';'.join(map(str, self.parts))}){self.kind.name}"
        microbatch = "" if self.microbatch < 0 else self.microbatch
        return f"{self.stage}{self.kind.name}{microbatch}"

    def __repr__(self) -> str:
        return f"<{self}>"


def fuse(kind: Kind, *parts: Action) -> Action:
    """A fused action of ``kind`` made of ``parts``."""
    return Action(-1, kind, -1, parts)


def mate(action: Action) -> Action:
    """The action at the other end of a transfer: the receive of a send and the reverse.

    The result may name a stage that does not exist, where the transfer itself is wrong.
    """
    info = KINDS[action.kind]
    if info.mate is None:
        raise ValueError(f"{action} is not a single send or receive")
    return Action(action.stage + info.stage_step, info.mate, action.microbatch)


def find_mate(action: Action, num_stages: int) -> Action | None:
    """``mate(action)``; None where there is none: the action is no single send or receive, or one
    of the two stages is not in ``0..num_stages - 1``."""
    if KINDS[action.kind].mate is None:
        return None
    other = mate(action)
    stages = range(num_stages)
    return other if other.stage in stages and action.stage in stages else None
