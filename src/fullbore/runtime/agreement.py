"""Ranks of different processes make sure that they run the same schedule."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from typing import Any
from zlib import crc32

from fullbore.errors import ParameterError
from fullbore.ir import KINDS, Group, Schedule
from fullbore.runtime.transport.base import GATHER_STAGE, Edge, Transport, make_tag
from fullbore.runtime.tree import Tree

# No run has the number 0.
_TAG = make_tag(0, GATHER_STAGE, 0, backward=False)
_RUN_TAG = make_tag(0, GATHER_STAGE, 1, backward=False)
_METHODS = ("eval()", "step()")


def compare_schedules(
    schedule: Schedule, edges: Collection[Edge], *, transport: Transport, tied: str = ""
) -> None:
    """Tell every rank that is on an edge with one of ours what ours runs, and hear the same.

    Without it, ranks of different orders or numbers of microbatches may go on, with wrong gradients
    or a wait without end.

    Args:
        schedule: of this rank.
        edges: of all ranks.
        transport: is connected along them.
        tied: the names of the parameters that stages have in common.

    Raises:
        ParameterError: the other rank runs another schedule, or ties other parameters.
    """
    ours = (
        crc32(tied.encode(), digest(schedule)),
        summary(schedule) + (f", with tied parameters {tied}" if tied else ""),
    )
    for other, theirs in _swap(ours, edges, tag=_TAG, transport=transport).items():
        if theirs[0] != ours[0]:
            raise ParameterError(
                f"the ranks do not run the same schedule: rank {other} has {theirs[1]}; "
                f"rank {min(transport.ranks)} has {ours[1]}"
            )


class Agreement:
    """What kind of run the ranks agreed on last. They need not agree again until one of them begins
    another kind, or until a run failed.

    Args:
        edges: between all ranks that exchange messages.
        transport: is connected along them.

    Attributes:
        calls: how often this rank was called.
    """

    def __init__(self, edges: Collection[Edge], transport: Transport) -> None:
        self._edges, self._transport = edges, transport
        self._training: bool | None = None
        self.calls = 0

    def reach(self, *, training: bool) -> None:
        """Make sure, before any tensor moves, that the neighbours begin the same kind of run.

        Raises:
            ParameterError: one does not, or has made another number of calls.
            TransportError: one goes on with the kind of run before.
        """
        if training is self._training or len(self._transport.ranks) > 1:
            return
        (rank,) = self._transport.ranks
        others = _swap((training, self.calls), self._edges, tag=_RUN_TAG, transport=self._transport)
        for other, (trains, calls) in others.items():
            if trains is not training:
                raise ParameterError(
                    f"rank {other} calls {_METHODS[trains]}, rank {rank} {_METHODS[training]}; all "
                    "ranks make the same calls, in the same order"
                )
            if calls != self.calls:
                raise ParameterError(
                    f"rank {rank} makes its call {self.calls}, rank {other} its call {calls}: one "
                    "had finished the step in which another failed, and their batches may not "
                    "belong together; call realign() on all ranks, then give all of them the same "
                    "batch"
                )
        self._training = training

    def forget(self) -> None:
        """A run failed."""
        self._training = None


def _swap(
    value: Tree, edges: Collection[Edge], *, tag: int, transport: Transport
) -> dict[int, Any]:
    """Give ``value`` to every neighbour; what they gave, by rank."""
    for edge in edges:
        if edge[0] in transport.ranks:
            transport.send(edge, tag, value)
    found = {}
    for edge in edges:
        if edge[1] in transport.ranks:
            transport.post(edge, tag)
            found[edge[0]] = transport.recv(edge, tag)
    return found


def digest(schedule: Schedule) -> int:
    """A checksum of what runs where; what the schedule is called doesn't count."""
    numbers = array("q", (schedule.num_microbatches, *schedule.placement.ranks))
    for program in schedule.programs:
        for stage, kind, microbatch, parts in program:
            # Each rank gathers and reduces for itself.
            if KINDS[kind].group is Group.SHARDING:
                continue
            numbers.extend((stage, kind, microbatch))
            for part in parts:
                numbers.extend(part[:3])
        numbers.append(-2)
    return crc32(numbers)


def summary(schedule: Schedule) -> str:
    """A line about the schedule, for people."""
    return (
        f"{schedule.name or 'a schedule'} of {schedule.num_ranks} ranks, {schedule.num_stages} "
        f"stages and {schedule.num_microbatches} microbatches ({digest(schedule):08x})"
    )
