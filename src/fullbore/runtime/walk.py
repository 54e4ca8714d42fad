"""A step whose actions are run one by one, with a look at the tensors in between."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor

from fullbore.errors import ExecutionError, ParameterError
from fullbore.ir import Schedule
from fullbore.runtime.custom import Run
from fullbore.runtime.flight import FlightRecorder
from fullbore.runtime.output import StepOutput
from fullbore.runtime.program import Program
from fullbore.runtime.transport.position import NOWHERE, STEP
from fullbore.runtime.tree import Tree, without_graph
from fullbore.runtime.unit import Gradients, Record, Unit
from fullbore.runtime.worker import StageWorker

Place = tuple[int, int]
"""A stage and a microbatch."""


class Abandoned(ExecutionError):
    """The caller does not finish a step."""


class WatchedWorker(StageWorker):
    """Remembers what the actions of a run work with, all by stage and microbatch.

    Attributes:
        inputs: what each stage was called with: a tuple, without graph.
        outputs: what it gave.
        output_gradients: the gradients that its backward started from: one for each output that
            wants one; after the last stage the weight of the loss.
        input_gradients: what it hands back: one for each tensor of the input that wants one.
    """

    def __init__(self, schedule: Schedule, *args: Any, **kwargs: Any) -> None:
        self.inputs: dict[Place, tuple[Tree, ...]] = {}
        self.outputs: dict[Place, Tree] = {}
        self.output_gradients: dict[Place, Gradients] = {}
        self.input_gradients: dict[Place, Gradients] = {}
        super().__init__(schedule, *args, **kwargs)

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        for seen in (self.inputs, self.outputs, self.output_gradients, self.input_gradients):
            seen.clear()

    def _take_input(self, unit: Unit, microbatch: int) -> Record:
        record = super()._take_input(unit, microbatch)
        self.inputs[unit.index, microbatch] = without_graph(record.args)
        return record

    def _hand_on(self, unit: Unit, record: Record) -> None:
        self.outputs[unit.index, record.microbatch] = without_graph(record.output)
        super()._hand_on(unit, record)

    def _take_gradients(self, unit: Unit, microbatch: int) -> Record:
        record = super()._take_gradients(unit, microbatch)
        self.output_gradients[unit.index, microbatch] = record.gradients
        return record

    def _hand_back(self, unit: Unit, record: Record) -> None:
        given = record.returning
        if given is None:
            raw = record.raw_gradients
            given = tuple(raw.get(id(leaf), leaf.grad) for leaf in record.leaves)
        self.input_gradients[unit.index, record.microbatch] = given
        super()._hand_back(unit, record)


class Walk:
    """A step under way: ``Pipeline.walk`` begins it.

    ``run`` runs an action, in an order that the caller answers for: each rank's in the order of its
    program, and a receive after its send. Gradients are added to ``.grad`` as they come; those of
    an abandoned step stay there.

    Args:
        program: of this process's ranks, running.
        seen: its worker.
        run: what it runs on.
        ends: what ends the step.
        flight: notes the actions.

    Attributes:
        seen: what the actions have worked with so far.
    """

    def __init__(
        self,
        program: Program,
        seen: WatchedWorker,
        run: Run,
        *,
        ends: ExitStack,
        flight: FlightRecorder | None,
    ) -> None:
        self._program, self.seen, self._run = program, seen, run
        self._ends, self._flight = ends, flight
        self._places = {place: index for index, place in enumerate(program.steps)}
        self._left = set(self._places)
        self._with_gradients, self._is_over = torch.is_grad_enabled(), False

    @property
    def losses(self) -> dict[int, Tensor]:
        """The losses so far, by microbatch, where the last stage is."""
        return self._run.losses

    def run(self, rank: int, step: int) -> None:
        """Run the action ``step`` of ``rank``'s program.

        Raises:
            ParameterError: this process does not play the rank, or has run the action; or the step
                is over.
            ExecutionError, or what the user's module raised: the step has failed.
        """
        self._check_open()
        if (rank, step) not in self._left:
            raise ParameterError(f"step {step} of rank {rank} is not to be run here, or was run")
        self._left.remove((rank, step))
        try:
            # Whatever the caller does between two actions to look at tensors.
            with torch.inference_mode(mode=False), torch.set_grad_enabled(self._with_gradients):
                self._program.run(self._run, self._flight, only=self._places[rank, step])
        except BaseException as error:
            self._end(error)
            raise

    def finish(self) -> StepOutput:
        """End the step, after its last action.

        Raises:
            ParameterError: actions are left; the walk goes on. Or it is over.
            ExecutionError: another rank failed.
        """
        self._check_open()
        if self._left:
            raise ParameterError(f"{len(self._left)} actions are not run yet; run or abandon them")
        out, self._is_over = self._run.output(), True
        self._ends.close()
        return out

    def abandon(self) -> None:
        """End the step here. Nothing that is under way is kept; the ranks can begin another step
        as soon as all of them have done so. Does nothing where it is over."""
        if self._is_over:
            return
        self._program.progress[STEP] = NOWHERE  # it is no failure of an action
        self._end(Abandoned("the step was abandoned"))

    def _check_open(self) -> None:
        if self._is_over:
            raise ParameterError("this step is over; begin another one")

    def _end(self, error: BaseException) -> None:
        self._is_over = True
        with suppress(type(error)):
            self._ends.__exit__(type(error), error, error.__traceback__)
