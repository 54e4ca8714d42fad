"""The interpreter: runs actions, in order, against a worker.

There is no other execution loop. A symbolic worker (in the tests) shows what a schedule computes;
the torch worker of ``fullbore.runtime`` computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

from fullbore.errors import ExecutionError
from fullbore.ir import Action, Kind

Call = Callable[[], None]


class Progress(Protocol):
    """Where an interpreter writes what it is at."""

    def __setitem__(self, index: int, mark: int, /) -> None:
        """``progress[0] = mark``, before every action."""

    def __getitem__(self, index: int, /) -> int:
        """What was written last."""


class Worker(Protocol):
    """What the interpreter asks of whoever does the work. A receive may return before the data is
    there: the compute that uses it waits."""

    def forward(self, stage: int, microbatch: int) -> None:
        """F."""

    def backward(self, stage: int, microbatch: int) -> None:
        """B."""

    def backward_input(self, stage: int, microbatch: int) -> None:
        """I."""

    def backward_weight(self, stage: int, microbatch: int) -> None:
        """W."""

    def send_forward(self, stage: int, microbatch: int) -> None:
        """SEND_F."""

    def recv_forward(self, stage: int, microbatch: int) -> None:
        """RECV_F."""

    def send_backward(self, stage: int, microbatch: int) -> None:
        """SEND_B."""

    def recv_backward(self, stage: int, microbatch: int) -> None:
        """RECV_B."""

    def unshard(self, stage: int) -> None:
        """UNSHARD."""

    def reshard(self, stage: int) -> None:
        """RESHARD."""

    def reduce_grad(self, stage: int) -> None:
        """REDUCE_GRAD."""

    def together(self, action: Action, parts: Sequence[Call]) -> None:
        """A fused action: run its parts, at once if possible, else one after another."""


def bind(action: Action, worker: Worker) -> Call:
    """The call that runs ``action`` on ``worker``."""
    stage, kind, microbatch, parts = action
    match kind:
        case Kind.F:
            return partial(worker.forward, stage, microbatch)
        case Kind.B:
            return partial(worker.backward, stage, microbatch)
        case Kind.I:
            return partial(worker.backward_input, stage, microbatch)
        case Kind.W:
            return partial(worker.backward_weight, stage, microbatch)
        case Kind.SEND_F:
            return partial(worker.send_forward, stage, microbatch)
        case Kind.RECV_F:
            return partial(worker.recv_forward, stage, microbatch)
        case Kind.SEND_B:
            return partial(worker.send_backward, stage, microbatch)
        case Kind.RECV_B:
            return partial(worker.recv_backward, stage, microbatch)
        case Kind.UNSHARD:
            return partial(worker.unshard, stage)
        case Kind.RESHARD:
            return partial(worker.reshard, stage)
        case Kind.REDUCE_GRAD:
            return partial(worker.reduce_grad, stage)
        case Kind.OVERLAP_F_B | Kind.SEND_F_RECV_B | Kind.SEND_B_RECV_F:
            calls = [bind(part, worker) for part in parts]
            return partial(worker.together, action, calls)


class Interpreter:
    """Actions bound to a worker once, to be run any number of times.

    Args:
        actions: what to run, as ``(rank, action)``: one rank's program, or all ranks' programs
            interleaved in an order that respects the dependencies.
        worker: who does the work.
        marks: a number for each action, all different; by default its place.
    """

    def __init__(
        self,
        actions: Iterable[tuple[int, Action]],
        worker: Worker,
        *,
        marks: Sequence[int] | None = None,
    ) -> None:
        self.actions = tuple(actions)
        self._marks = range(len(self.actions)) if marks is None else marks
        calls = [bind(action, worker) for _, action in self.actions]
        self._marked_calls = list(zip(self._marks, calls, strict=True))

    def run(
        self,
        *,
        around: Callable[[Action], AbstractContextManager[object]] | None = None,
        progress: Progress | None = None,
        only: int | None = None,
    ) -> None:
        """Run all actions, or the one at the place ``only``, each inside ``around(action)`` if
        given (a profiler's label, say). The mark of the current one stands in ``progress[0]``.

        Raises:
            ExecutionError: with rank, stage and action filled in where they were not known.
            BaseException: what the user's module raised, with a note that says where.
        """
        progress = [0] if progress is None else progress
        actions, calls = self.actions, self._marked_calls
        if only is not None:
            actions, calls = actions[only : only + 1], calls[only : only + 1]
        try:
            if around is None:
                for mark, call in calls:
                    progress[0] = mark
                    call()
                return
            for (_, action), (mark, call) in zip(actions, calls, strict=True):
                progress[0] = mark
                with around(action):
                    call()
        except BaseException as error:
            if progress[0] in self._marks:  # or it came before the first action
                self._annotate(error, self._marks.index(progress[0]))
            raise

    def _annotate(self, error: BaseException, step: int) -> None:
        rank, action = self.actions[step]
        stages = sorted({leaf.stage for leaf in action.leaves})
        if not isinstance(error, ExecutionError):
            named = ", ".join(map(str, stages))
            # Whatever the user's class makes of the method.
            BaseException.add_note(error, f"rank {rank}, stage {named}, action {action}")
            return
        error.rank = rank if error.rank is None else error.rank
        error.stage = stages[0] if error.stage is None else error.stage
        error.action = str(action) if error.action is None else error.action
