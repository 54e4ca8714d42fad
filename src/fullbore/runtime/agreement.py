"""Ranks of different processes make sure that they run the same schedule."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from zlib import crc32

from fullbore.errors import ParameterError
from fullbore.ir import KINDS, Group, Schedule
from fullbore.runtime.transport.base import Edge, Transport, make_tag

# No run has the number 0.
_TAG = make_tag(0, 0, 0, backward=False)


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
    for edge in edges:
        if edge[0] in transport.ranks:
            transport.send(edge, _TAG, ours)
    for edge in edges:
        if edge[1] not in transport.ranks:
            continue
        transport.post(edge, _TAG)
        theirs = transport.recv(edge, _TAG)
        if theirs[0] != ours[0]:
            raise ParameterError(
                f"the ranks do not run the same schedule: rank {edge[0]} has {theirs[1]}; "
                f"rank {edge[1]} has {ours[1]}"
            )


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
