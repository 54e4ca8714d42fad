"""Post a send and a receive between the same two ranks together, or apart again."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from fullbore.ir import KINDS, Action, Form, Kind, Schedule, fuse, mate
from fullbore.passes.base import Pass, has

Place = tuple[int, int]  # rank and step

_PAIRS = {frozenset(KINDS[kind].parts): kind for kind in (Kind.SEND_F_RECV_B, Kind.SEND_B_RECV_F)}
_FORWARD = (Kind.SEND_F, Kind.RECV_F)


@dataclass(frozen=True)
class BatchCommunication(Pass):
    """Neighbouring send and receive with the same peer, in opposite directions, become a pair.

    ``SEND_F`` and ``RECV_B`` make a ``SEND_F_RECV_B``, ``SEND_B`` and ``RECV_F`` a
    ``SEND_B_RECV_F``. Both halves are posted before either is awaited, so the two messages can
    pass each other. First come those that are neighbours on both of their ranks and make a pair
    on each, then those whose other ends stay two single actions. What ran before still runs:
    between its two transfers the rank does nothing, so it can post the second with the first.
    """

    name: ClassVar[str] = "batch_communication"
    takes: ClassVar[tuple[Form, ...]] = (Form.LOWERED,)

    def apply(self, schedule: Schedule) -> Schedule:
        """Choose the pairs, then write them."""
        starts = _starts(schedule)
        programs: list[list[Action]] = []
        for rank, program in enumerate(schedule.programs):
            actions: list[Action] = []
            for step, action in enumerate(program):
                if (rank, step) in starts:
                    actions.append(_pair(action, program[step + 1]))
                elif (rank, step - 1) not in starts:
                    actions.append(action)
            programs.append(actions)
        return schedule.with_programs(programs)


@dataclass(frozen=True)
class UnbatchCommunication(Pass):
    """The halves of every batched pair become two actions, in the order in which the peer has them.

    Where the peer has a pair too, the activations go first.
    """

    name: ClassVar[str] = "unbatch_communication"
    takes: ClassVar[tuple[Form, ...]] = (Form.LOWERED,)

    def apply(self, schedule: Schedule) -> Schedule:
        """Write the halves in order; a schedule without pairs stays as it is."""
        if not any(has(schedule, kind) for kind in _PAIRS.values()):
            return schedule
        steps = {leaf: step for _, step, action in schedule.actions() for leaf in action.leaves}

        def turn(half: Action) -> tuple[int, bool]:
            return steps[mate(half)], half.kind not in _FORWARD

        return schedule.with_programs(
            [
                [
                    half
                    for action in program
                    for half in (
                        sorted(action.parts, key=turn)
                        if action.kind in _PAIRS.values()
                        else (action,)
                    )
                ]
                for program in schedule.programs
            ]
        )


def _starts(schedule: Schedule) -> set[Place]:
    """Where the first of two actions stands that become a pair."""
    places = {
        action: (rank, step)
        for rank, step, action in schedule.actions()
        if KINDS[action.kind].mate is not None
    }
    candidates: list[tuple[Place, Place, Place]] = []  # neighbours, and the ends at the peer
    for rank, program in enumerate(schedule.programs):
        for step, neighbours in enumerate(pairwise(program)):
            if frozenset(action.kind for action in neighbours) in _PAIRS:
                mates = map(mate, neighbours)
                ends = sorted(places[action] for action in mates if action in places)
                if len(ends) == 2 and ends[0][0] == ends[1][0]:
                    candidates.append(((rank, step), ends[0], ends[1]))
    starts: set[Place] = set()
    free = set(places.values())
    for on_both_ranks in (True, False):
        for here, end, last in candidates:
            involved = {here, (here[0], here[1] + 1), end, last}
            if (last[1] == end[1] + 1) is on_both_ranks and involved <= free:
                free -= involved
                starts |= {here, end} if on_both_ranks else {here}
    return starts


def _pair(first: Action, second: Action) -> Action:
    kind = _PAIRS[frozenset((first.kind, second.kind))]
    order = KINDS[kind].parts.index
    return fuse(kind, *sorted((first, second), key=lambda half: order(half.kind)))
