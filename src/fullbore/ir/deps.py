"""The dependency rule: what each action needs to have happened, and what it makes happen.

Verifier, lowering, simulator and runtime all ask this module. An action *gives* facts and *needs*
facts; a schedule can run if, in some interleaving of its programs, every action's needs were given
before. A fact such as "the input gradient of stage 2 for microbatch 5 exists" is coded as one
integer, so that large schedules can be judged quickly.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from fullbore.ir.action import Action
from fullbore.ir.kinds import Kind
from fullbore.ir.schedule import Form, Schedule


class Fact(IntEnum):
    """What can be true of a stage and a microbatch."""

    OUTPUT = 0  # F ran
    INPUT_GRAD = 1  # B or I ran
    WEIGHT_GRAD = 2  # B or W ran
    KEPT = 3  # I ran and left what W needs
    SENT_F = 4  # the activations for this stage are on their way
    ARRIVED_F = 5  # ... and have arrived
    SENT_B = 6  # the gradients for this stage's output are on their way
    ARRIVED_B = 7  # ... and have arrived


Term = tuple[Fact, int]  # a fact, and how many stages away from the action it lies


def rule(kind: Kind, *, first: bool, last: bool, remote: tuple[bool, bool]) -> tuple[Term, ...]:
    """What an action of ``kind`` needs (DESIGN 4.1), for the same microbatch.

    Args:
        kind: a plain kind.
        first, last: whether the stage is the pipeline's first or last.
        remote: whether input comes by message, and whether output gradients do.
    """
    match kind:
        case Kind.F if first:
            return ()
        case Kind.F:
            return ((Fact.ARRIVED_F, 0),) if remote[0] else ((Fact.OUTPUT, -1),)
        case Kind.B | Kind.I if last:
            return ((Fact.OUTPUT, 0),)
        case Kind.B | Kind.I:
            gradient = (Fact.ARRIVED_B, 0) if remote[1] else (Fact.INPUT_GRAD, 1)
            return ((Fact.OUTPUT, 0), gradient)
        case Kind.W:
            return ((Fact.KEPT, 0),)
        case Kind.SEND_F:
            return ((Fact.OUTPUT, 0),)
        case Kind.RECV_F:
            return ((Fact.SENT_F, 0),)
        case Kind.SEND_B:
            return ((Fact.INPUT_GRAD, 0),)
        case Kind.RECV_B:
            return ((Fact.SENT_B, 0),)
        case Kind.REDUCE_GRAD:
            return ((Fact.WEIGHT_GRAD, 0),)
        case Kind.UNSHARD | Kind.RESHARD:
            return ()
        case Kind.OVERLAP_F_B | Kind.SEND_F_RECV_B | Kind.SEND_B_RECV_F:
            return ()  # what its parts need; without parts, the verifier reports it


def outcome(kind: Kind) -> tuple[Term, ...]:
    """What holds once an action of ``kind`` has run, for the same microbatch."""
    match kind:
        case Kind.F:
            return ((Fact.OUTPUT, 0),)
        case Kind.B:
            return ((Fact.INPUT_GRAD, 0), (Fact.WEIGHT_GRAD, 0))
        case Kind.I:
            return ((Fact.INPUT_GRAD, 0), (Fact.KEPT, 0))
        case Kind.W:
            return ((Fact.WEIGHT_GRAD, 0),)
        case Kind.SEND_F:
            return ((Fact.SENT_F, 1),)
        case Kind.RECV_F:
            return ((Fact.ARRIVED_F, 0),)
        case Kind.SEND_B:
            return ((Fact.SENT_B, -1),)
        case Kind.RECV_B:
            return ((Fact.ARRIVED_B, 0),)
        case Kind.REDUCE_GRAD | Kind.UNSHARD | Kind.RESHARD:
            return ()
        case Kind.OVERLAP_F_B | Kind.SEND_F_RECV_B | Kind.SEND_B_RECV_F:
            return ()


class Dependencies:
    """The rule, for the placement, form and size of one schedule.

    Codes run from 0 to ``size - 1``. Actions must be in range: stages 0..S-1, microbatches 0..M-1.
    """

    def __init__(self, schedule: Schedule) -> None:
        ranks = schedule.placement.ranks
        self.num_stages, self.num_microbatches = len(ranks), schedule.num_microbatches
        self._plane = self.num_stages * self.num_microbatches
        self.size = len(Fact) * self._plane
        lowered, last = schedule.form is Form.LOWERED, len(ranks) - 1
        remote = [lowered and s > 0 and ranks[s - 1] != ranks[s] for s in range(last + 1)]
        remote.append(False)
        # For each stage and kind, codes relative to the action's own cell of the first plane.
        self._gives = [self._offsets(outcome(kind)) for kind in Kind]
        self._needs = [
            [
                self._offsets(
                    rule(kind, first=s == 0, last=s == last, remote=(remote[s], remote[s + 1]))
                )
                for kind in Kind
            ]
            for s in range(last + 1)
        ]

    def _offsets(self, terms: tuple[Term, ...]) -> tuple[int, ...]:
        """Codes relative to the cell of the action."""
        return tuple(fact * self._plane + away * self.num_microbatches for fact, away in terms)

    def code(self, fact: Fact, stage: int, microbatch: int) -> int:
        """The integer that stands for ``fact`` of ``stage`` and ``microbatch``."""
        return fact * self._plane + stage * self.num_microbatches + microbatch

    def needs(self, action: Action) -> Sequence[int]:
        """The facts that must hold before ``action`` starts."""
        stage, kind, microbatch, parts = action
        if parts:
            inner = {fact for part in parts for fact in self.gives(part)}
            wanted = (fact for part in parts for fact in self.needs(part))
            return tuple(fact for fact in wanted if fact not in inner)
        here = stage * self.num_microbatches + microbatch
        offsets = self._needs[stage][kind]
        if len(offsets) == 1:
            first = here + offsets[0]
            if microbatch >= 0:
                return (first,)
            # A reduction: its microbatch, -1, lies before the row, and it needs the whole row. A
            # range, as a schedule made by hand may claim to have any number of microbatches.
            return range(first + 1, first + 1 + self.num_microbatches)
        return tuple([here + offset for offset in offsets])

    def gives(self, action: Action) -> tuple[int, ...]:
        """The facts that hold once ``action`` has run."""
        stage, kind, microbatch, parts = action
        if parts:
            return tuple(fact for part in parts for fact in self.gives(part))
        here = stage * self.num_microbatches + microbatch
        offsets = self._gives[kind]
        if len(offsets) == 1:
            return (here + offsets[0],)
        return tuple([here + offset for offset in offsets])

    def givers(self, code: int) -> str:
        """The action that gives a fact, as text; ``1B3 or 1I3`` where there are two."""
        fact, here = divmod(code, self._plane)
        stage, microbatch = divmod(here, self.num_microbatches)
        match Fact(fact):
            case Fact.OUTPUT:
                return f"{stage}F{microbatch}"
            case Fact.INPUT_GRAD:
                return f"{stage}B{microbatch} or {stage}I{microbatch}"
            case Fact.WEIGHT_GRAD:
                return f"{stage}B{microbatch} or {stage}W{microbatch}"
            case Fact.KEPT:
                return f"{stage}I{microbatch}"
            case Fact.SENT_F:
                return f"{stage - 1}SEND_F{microbatch}"
            case Fact.ARRIVED_F:
                return f"{stage}RECV_F{microbatch}"
            case Fact.SENT_B:
                return f"{stage + 1}SEND_B{microbatch}"
            case Fact.ARRIVED_B:
                return f"{stage}RECV_B{microbatch}"
