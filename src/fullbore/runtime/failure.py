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


def describe(error: BaseException) -> str:
    """An error as the other ranks are told of it."""
    notes = "; ".join(getattr(error, "__notes__", ()))
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text + (f" ({notes})" if notes else "")


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
        logger.error("the flight record is in %s", flight.write(describe(error)))
    progress[STEP] = NOWHERE
