"""What a training run is told. Nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fullbore.errors import ParameterError
from fullbore.ir import Schedule
from fullbore.plan import Memory
from fullbore.view.blocks import count

VOCABULARY = 256
"""The model reads and predicts bytes."""

WARM_UP = 10
"""Steps in which the learning rate rises to its full value."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The shape of the whole model.

    Raises:
        ParameterError: a number is under 1, or ``heads`` does not divide ``width``.
    """

    layers: int = 8
    width: int = 128
    heads: int = 4
    sequence_length: int = 128

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "sequence_length"):
            _at_least_one(name, getattr(self, name))
        if self.width % self.heads:
            raise ParameterError(
                f"--width must be a multiple of --heads; got {self.width} and {self.heads}"
            )


@dataclass(frozen=True, slots=True)
class Recipe:
    """What decides the weights at every step, however the work is spread over ranks.

    Attributes:
        size: of the model.
        batch_size: rows a step.
        learning_rate: of AdamW, after the warm-up.
        seed: of the weights and of the order of the data.
    """

    size: ModelSize = field(default_factory=ModelSize)
    batch_size: int = 8
    learning_rate: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least_one("batch_size", self.batch_size)
        if not 0 < self.learning_rate < float("inf"):
            raise ParameterError(f"--lr must be a positive number; got {self.learning_rate}")

    def rate(self, step: int) -> float:
        """The learning rate of a step; it depends on nothing else, so that a resumed run goes on
        as if it had never stopped."""
        return self.learning_rate * min(1.0, (step + 1) / WARM_UP)


@dataclass(frozen=True, slots=True)
class Planning:
    """What ``--plan`` is told.

    Attributes:
        after: how many steps to measure before planning. Where the schedule leaves open what a
            full backward takes, or its two halves, as many again are measured with these.
        memory: what a rank may hold in all; None: any amount.
        deadline: seconds to plan for.

    Raises:
        ParameterError: there is no step to measure, or no time to plan.
    """

    after: int = 8
    memory: Memory | None = None
    deadline: float = 10.0

    def __post_init__(self) -> None:
        _at_least_one("plan_after", self.after)
        if not self.deadline > 0:
            raise ParameterError(
                f"--plan-deadline must be more than 0 seconds; got {self.deadline}"
            )


@dataclass(frozen=True, slots=True)
class Settings:
    """One run.

    Attributes:
        recipe: what is trained, and how.
        schedule: how the work is spread.
        steps: at which step the run ends, counted from the very beginning.
        text: a file or folder; None for the standard library's source.
        device: ``cpu`` or ``cuda``.
        transport: ``auto``, ``shm``, ``p2p`` or ``local``.
        threads: of each rank, for computation.
        check: whether each step is compared with the unpipelined model.
        eval_every: steps between evaluations on held-out text; None for one at the end.
        save: where checkpoints go, if anywhere.
        save_every: steps between checkpoints; None for one at the end.
        profile: the folder that the latest steps' profile goes to, if anywhere.
        split: how many layers each stage has; None: as many for each as can be.
        planning: how to plan after some steps, and go on with the plan; None: not at all.
        controller: the engine of the script that drives all ranks; None: each has a program.
    """

    recipe: Recipe
    schedule: Schedule
    steps: int
    text: Path | None = None
    device: str = "cpu"
    transport: Literal["auto", "shm", "p2p", "local"] = "auto"
    threads: int = 1
    check: bool = False
    eval_every: int | None = None
    save: Path | None = None
    save_every: int | None = None
    profile: Path | None = None
    split: tuple[int, ...] | None = None
    planning: Planning | None = None
    controller: Literal["local", "monarch"] | None = None

    def __post_init__(self) -> None:
        rows, parts = self.recipe.batch_size, self.schedule.num_microbatches
        if self.planning is not None and self.schedule.num_ranks == 1:
            raise ParameterError("--plan: with 1 rank there is nothing to plan; use --ranks 2")
        if self.schedule.forward_only:
            raise ParameterError("--schedule: this one runs no backward, so it cannot train")
        if self.controller is not None:
            _check_controller(self.controller, self.transport)
        if rows < parts:
            raise ParameterError(
                f"--batch-size must be at least the number of microbatches, {parts}; got {rows}"
            )

    @property
    def microbatch_size(self) -> int:
        """Rows of the largest microbatch."""
        return -(-self.recipe.batch_size // self.schedule.num_microbatches)

    @property
    def takes_turns(self) -> bool:
        """Whether all ranks are in one process, so that no two of them work at once."""
        return "local" in (self.transport, self.controller)

    @property
    def title(self) -> str:
        """The run in a few words."""
        return f"{self.schedule.name} on {count(self.schedule.num_ranks, 'rank')}"

    def evaluates_after(self, step: int) -> bool:
        """Whether step ``step``, counted from 1, is followed by an evaluation."""
        return step == self.steps or (self.eval_every is not None and step % self.eval_every == 0)

    def saves_after(self, step: int) -> bool:
        """Whether step ``step``, counted from 1, is followed by a checkpoint. The last one is in
        any case."""
        if self.save is None:
            return False
        return self.save_every is not None and step % self.save_every == 0


def _check_controller(engine: str, transport: str) -> None:
    if engine == "local" and transport in ("shm", "p2p"):
        raise ParameterError(
            f"--transport {transport}: --controller local plays all ranks in one process, where "
            "nothing is sent; leave it out, or use --controller monarch"
        )
    if engine == "monarch" and transport == "local":
        raise ParameterError(
            "--transport local: --controller monarch gives each rank a process; use --controller "
            "local to play all of them in one"
        )


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ParameterError(f"--{name.replace('_', '-')} must be at least 1; got {value}")
