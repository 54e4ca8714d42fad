"""What is told of a failure: to the user, to the log, to the flight record, to the other ranks."""

from __future__ import annotations

import logging

from fullbore.errors import PeerFailed, TransportTimeout
from fullbore.ir import Schedule
from fullbore.runtime.flight import FlightRecorder
from fullbore.runtime.stall import describe_stall, read_mark, schedule_of_run
from fullbore.runtime.transport.base import Transport
from fullbore.runtime.transport.position import NOWHERE, RUN, STEP, WAITS_FOR, Position
from fullbore.view import render_around

logger = logging.getLogger("fullbore")


_LONGEST = 4000
"""Characters of an error that are told to others."""


def describe(error: BaseException) -> str:
    """An error as the other ranks are told of it: text that can be encoded, of a sensible length,
    whatever the error's own text is like."""
    notes = "; ".join(map(str, getattr(error, "__notes__", ())))
    try:
        own = str(error)
    except Exception as reason:  # noqa: BLE001 - anything may come of a user's class
        own = f"(its text cannot be made: {type(reason).__name__})"
    if len(own) > _LONGEST:
        own = f"{own[:_LONGEST]}... ({len(own)} characters)"
    text = f"{type(error).__name__}: {own}" if own else type(error).__name__
    text += f" ({notes})" if notes else ""
    return text.encode("utf-8", "backslashreplace").decode()


def report(
    error: BaseException,
    *,
    schedule: Schedule,
    transport: Transport,
    flight: FlightRecorder | None = None,
) -> None:
    """Add to ``error`` what is known of a stall, log where in the schedule it happened if it
    happened here first, and write the flight record. This rank is in no run afterwards."""
    progress = transport.progress
    mark, run, waits_for = progress[STEP], progress[RUN], progress[WAITS_FOR]
    is_stall = isinstance(error, TransportTimeout) and bool(error.positions)
    if isinstance(error, TransportTimeout) and is_stall:
        (rank,) = transport.ranks
        own = Position(mark, run, waits_for)
        known = {r: p for r, p in error.positions.items() if isinstance(p, Position)}
        error.message += f": {describe_stall(rank, own, known, schedule)}"
    if mark != NOWHERE and (is_stall or not isinstance(error, PeerFailed | TransportTimeout)):
        place = read_mark(mark)
        shown = schedule_of_run(schedule, run)
        logger.error(
            "rank %d failed at %s: %s\n%s",
            place.rank,
            shown.programs[place.rank][place.step],
            describe(error),
            render_around(shown, place.rank, place.step),
        )
    if flight is not None:
        try:
            logger.error("the flight record is in %s", flight.write(describe(error)))
        except OSError as reason:
            logger.error("the flight record cannot be written: %s", reason)
    progress[STEP] = NOWHERE
