"""What the processes of a run and its director tell each other."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

from fullbore.ir import Schedule
from fullbore.sim import Profile
from fullbore.train.compare import Difference
from fullbore.train.footprint import Footprint
from fullbore.train.settings import Planning, Recipe


class Outcome(Enum):
    """How a run ends."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    TERMINATED = "terminated"
    MISMATCH = "mismatch"
    DIVERGED = "diverged"

    @property
    def exit_code(self) -> int:
        """The program's; 128 and the signal's number after one, as shells have it."""
        match self:
            case Outcome.FINISHED:
                return 0
            case Outcome.INTERRUPTED:
                return 128 + signal.SIGINT
            case Outcome.TERMINATED:
                return 128 + signal.SIGTERM
            case Outcome.MISMATCH | Outcome.DIVERGED:
                return 1


@dataclass(frozen=True, slots=True)
class Ready:
    """A process can begin, having been told this. The reply is ``Start``."""

    recipe: Recipe
    schedule: Schedule
    steps: int
    eval_every: int | None
    check: bool
    split: tuple[int, ...] | None
    planning: Planning | None


@dataclass(frozen=True, slots=True)
class Start:
    """What a process trains on, and where it goes on from.

    Attributes:
        text: all bytes.
        num_train: how many of them, from the beginning, are trained on.
        state: the packed state of a checkpoint, if there is one.
        step: how many steps are done.
    """

    text: bytearray
    num_train: int
    state: bytes | None
    step: int


@dataclass(frozen=True, slots=True)
class Record:
    """What came of a step. The reply is ``Verdict``.

    Attributes:
        step: which one, counted from 1.
        loss: mean loss in nats a byte, from the rank of the last stage.
        seconds: how long pipeline and optimizer took.
        held_out: the loss on held-out text, likewise, where it was evaluated.
        difference: from the unpipelined model, the worst of what this process compared.
        compared: how many tensors that were.
    """

    step: int
    loss: float | None
    seconds: float
    held_out: float | None = None
    difference: Difference | None = None
    compared: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all do next: send their ``State`` if ``save``, then stop if there is an outcome, then
    send their ``Sounding`` if ``plan``."""

    save: bool
    outcome: Outcome | None
    plan: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """Packed weights and optimizer state of a process's stages. There is no reply."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Weights:
    """Packed weights of a process's stages. The reply is those of all processes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Sounding:
    """What the planner needs to know. The reply is the schedule to go on with, or None for the
    one that runs.

    Attributes:
        profile: of the latest steps, of all ranks, from the process of rank 0.
        footprints: of the stages held here.
    """

    profile: Profile | None
    footprints: dict[int, Footprint]


@dataclass(frozen=True, slots=True)
class Measured:
    """What the run showed. No reply.

    Attributes:
        profile: of the latest steps, of all ranks, from the process of rank 0.
        footprints: of the stages held here, if a profile is to be written.
    """

    profile: Profile | None
    footprints: dict[int, Footprint]
