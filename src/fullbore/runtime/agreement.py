"""Ranks of different processes make sure that they run the same schedule."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from zlib import crc32

from fullbore.errors import ParameterError
from fullbore.ir import Schedule
from fullbore.runtime.transport.base import Edge, Transport, make_tag

# No run has the number 0.
_TAG = make_tag(0, 0, 0, backward=False)


def compare_schedules(schedule: Schedule, edges: Collection[Edge], *, transport: Transport) -> None:
    """Tell every rank that is on an edge with one of ours what ours runs, and hear the same.

    Without it, ranks of different orders or numbers of microbatches may go on, with wrong gradients
    or a wait without end.

    Raises:
        ParameterError: the other rank runs another schedule.
    """
    ours = summary(schedule)
    for edge in edges:
        if edge[0] in transport.ranks:
            transport.send(edge, _TAG, ours)
    for edge in edges:
        if edge[1] not in transport.ranks:
            continue
        transport.post(edge, _TAG)
        theirs = transport.recv(edge, _TAG)
        if theirs != ours:
            raise ParameterError(
                f"the ranks do not run the same schedule: rank {edge[0]} has {theirs}; "
                f"rank {edge[1]} has {ours}"
            )


def summary(schedule: Schedule) -> str:
    """A line about the schedule, with a checksum of its programs and placement."""
    numbers = array("q", schedule.placement.ranks)
    for program in schedule.programs:
        for stage, kind, microbatch, parts in program:
            numbers.extend((stage, kind, microbatch))
            for part in parts:
                numbers.extend(part[:3])
        numbers.append(-2)
    return (
        f"{schedule.name or 'a schedule'} of {schedule.num_ranks} ranks, {schedule.num_stages} "
        f"stages and {schedule.num_microbatches} microbatches ({crc32(numbers):08x})"
    )
