"""A schedule bound to the stages and the transport of this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch.autograd.profiler import record_function

from fullbore.execute import Interpreter
from fullbore.ir import Action, Kind, Schedule, executable_order
from fullbore.runtime.custom import Run
from fullbore.runtime.flight import FlightRecorder
from fullbore.runtime.stall import make_marks
from fullbore.runtime.transport.base import Edge, Transport
from fullbore.runtime.transport.position import NOWHERE, STEP, Progress
from fullbore.runtime.worker import StageWorker


class Program:
    """The actions of this process's ranks, to be run any number of times.

    Args:
        schedule: in the LOWERED form.
        transport: says which ranks this process plays; several are interleaved in an order that
            respects the dependencies.
        worker: does the work.

    Attributes:
        steps: the rank and step of each action, in the order in which all of them run.
    """

    def __init__(self, schedule: Schedule, transport: Transport, worker: StageWorker) -> None:
        ranks = transport.ranks
        if len(ranks) == 1:
            (rank,) = ranks
            steps: Sequence[tuple[int, int]] = [
                (rank, step) for step in range(len(schedule.programs[rank]))
            ]
        else:
            steps = executable_order(schedule).steps
        actions = [(rank, schedule.programs[rank][step]) for rank, step in steps]
        marks = make_marks(schedule, steps)
        self._interpreter, self.worker = Interpreter(actions, worker, marks=marks), worker
        self._transport, self.steps = transport, steps

    @property
    def progress(self) -> Progress:
        """Where it is noted how far this process is."""
        return self._transport.progress

    def execute(self, run: Run, flight: FlightRecorder | None = None) -> None:
        """Run all actions; what comes out is in ``run``, and when each one ran in ``flight``.

        Raises:
            ExecutionError, or what the user's module raised: see ``Interpreter.run``.
        """
        with self.running(run):
            self.run(run, flight)

    @contextmanager
    def running(self, run: Run) -> Iterator[None]:
        """Inside, the actions of ``run`` can be run; all of them, by the end."""
        self.worker.begin(run)
        try:
            yield
            self.worker.finish()
            self._transport.flush()
            self._transport.progress[STEP] = NOWHERE
        finally:
            self.worker.clear()

    def run(
        self, run: Run, flight: FlightRecorder | None = None, *, only: int | None = None
    ) -> None:
        """Run all actions, or the one at a place of ``steps``; see ``execute``."""
        label = _label if torch._C._autograd._profiler_enabled() else None
        around = label if flight is None else flight.around(run.epoch, label)
        self._interpreter.run(around=around, progress=self._transport.progress, only=only)


def edges(schedule: Schedule) -> tuple[Edge, ...]:
    """The directed rank pairs that carry messages, sorted."""
    ranks, edges = schedule.placement.ranks, set()
    for _, _, action in schedule.actions():
        for leaf in action.leaves:
            if leaf.kind is Kind.SEND_F:
                edges.add((ranks[leaf.stage], ranks[leaf.stage + 1]))
            elif leaf.kind is Kind.SEND_B:
                edges.add((ranks[leaf.stage], ranks[leaf.stage - 1]))
    return tuple(sorted(edges))


def _label(action: Action) -> AbstractContextManager[object]:
    # The prefix is PyTorch's too. Without it the profiler takes 2F0 for a mangled C++ name.
    return record_function(f"PP:{action}")
