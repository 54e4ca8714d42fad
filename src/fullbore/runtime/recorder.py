"""When each action ran: a worker that looks at the clock."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fullbore.execute import Call
from fullbore.ir import Action, Kind, Schedule
from fullbore.runtime.custom import Run
from fullbore.runtime.tree import Tree, tensors
from fullbore.runtime.unit import Record, Unit
from fullbore.runtime.worker import StageWorker
from fullbore.sim import Sample

KEPT_STEPS = 50
"""Steps that are remembered; earlier ones are forgotten."""

Steps = deque[dict[int, list[Sample]]]
"""The samples of each step, by rank of this process."""


class _HostClock:
    """Seconds of a clock that the processes of one host share."""

    now = staticmethod(time.perf_counter)

    def start(self) -> None:
        """A step begins."""

    def seconds(self, mark: Any) -> float:
        """What a mark of ``now()`` stands for."""
        return float(mark)


class _DeviceClock:
    """When a GPU's current stream gets to the marks, in seconds of the host's clock."""

    def start(self) -> None:
        """A step begins: nothing is under way."""
        torch.cuda.synchronize()
        self._origin = self.now()
        self._begin = time.perf_counter()

    def now(self) -> Any:
        """A mark on the stream."""
        mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        mark.record()
        return mark

    def seconds(self, mark: Any) -> float:
        """When the stream got there; waits for it."""
        mark.synchronize()
        return self._begin + float(self._origin.elapsed_time(mark)) / 1e3


class RecordingWorker(StageWorker):
    """A ``StageWorker`` that notes when it turned to each action, when what the action waits for
    was there, and when it was done. The parts of an overlap are noted one by one, unless a custom
    function runs them together.

    Attributes:
        steps: the latest steps that ran to their end.
    """

    def __init__(self, schedule: Schedule, *args: Any, **kwargs: Any) -> None:
        super().__init__(schedule, *args, **kwargs)
        self._ranks = schedule.placement.ranks
        on_gpu = any(
            p.is_cuda for unit in self._units.values() for p in unit.stage.module.parameters()
        )
        self._clock: _DeviceClock | _HostClock = _DeviceClock() if on_gpu else _HostClock()
        self.steps: Steps = deque(maxlen=KEPT_STEPS)
        self._marks: list[tuple[int, Action, Any, Any, Any, int]] = []
        self._ready: Any = None
        for steps in self._steps.values():
            steps.take = self._noting(steps.take)

    def begin(self, run: Run) -> None:
        """Start on ``run``."""
        super().begin(run)
        self._marks = []
        self._clock.start()

    def finish(self) -> None:
        """After the last action; the step is remembered."""
        super().finish()
        seconds = self._clock.seconds
        found: dict[int, list[Sample]] = {rank: [] for rank in self._transport.ranks}
        starts = [seconds(start) for _, _, start, *_ in self._marks]
        for number, (rank, action, _, ready, mark, size) in enumerate(self._marks, 1):
            end = seconds(mark)
            after = starts[number] - end if number < len(starts) else 0.0
            times = starts[number - 1], seconds(ready), end
            found[rank].append(Sample(action, *times, size, after))
        self.steps.append(found)

    def send_forward(self, stage: int, microbatch: int) -> None:
        """SEND_F."""
        size = _bytes(self._units[stage].outgoing[microbatch])
        start = self._clock.now()
        super().send_forward(stage, microbatch)
        self._note(Action(stage, Kind.SEND_F, microbatch), start, start, size)

    def send_backward(self, stage: int, microbatch: int) -> None:
        """SEND_B."""
        size = _bytes(self._units[stage].returning[microbatch])
        start = self._clock.now()
        super().send_backward(stage, microbatch)
        self._note(Action(stage, Kind.SEND_B, microbatch), start, start, size)

    def unshard(self, stage: int) -> None:
        """UNSHARD."""
        start = self._clock.now()
        super().unshard(stage)
        self._note(Action(stage, Kind.UNSHARD), start, start)

    def reshard(self, stage: int) -> None:
        """RESHARD."""
        start = self._clock.now()
        super().reshard(stage)
        self._note(Action(stage, Kind.RESHARD), start, start)

    def reduce_grad(self, stage: int) -> None:
        """REDUCE_GRAD."""
        start = self._clock.now()
        super().reduce_grad(stage)
        self._note(Action(stage, Kind.REDUCE_GRAD), start, start)

    def together(self, action: Action, parts: Sequence[Call]) -> None:
        """A fused action."""
        if action.kind not in self._custom:
            super().together(action, parts)
            return
        start = self._clock.now()
        super().together(action, parts)
        self._note(action, start, self._ready)

    def _do(self, steps: Any, stage: int, microbatch: int) -> None:
        start = self._clock.now()
        super()._do(steps, stage, microbatch)
        self._note(Action(stage, steps.kind, microbatch), start, self._ready)

    def _noting(self, take: Callable[[Unit, int], Record]) -> Callable[[Unit, int], Record]:
        def noted(unit: Unit, microbatch: int) -> Record:
            record = take(unit, microbatch)
            self._ready = self._clock.now()
            return record

        return noted

    def _note(self, action: Action, start: Any, ready: Any, size: int = 0) -> None:
        rank = self._ranks[action.leaves[0].stage]
        self._marks.append((rank, action, start, ready, self._clock.now(), size))


def _bytes(value: Tree) -> int:
    return sum(tensor.nbytes for tensor in tensors(value))
