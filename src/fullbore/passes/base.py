"""What a pass is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar

from fullbore.errors import ParameterError, PassError
from fullbore.ir import Dependencies, Form, Kind, Schedule, executable_order

EITHER = (Form.COMPUTE, Form.LOWERED)


@dataclass(frozen=True)
class Pass(ABC):
    """A function from a schedule to a schedule; its fields are its options.

    A pass never changes its input, gives the same result for the same input, and expects a
    schedule that ``fullbore.verify.check`` accepts: ``run_passes`` makes sure. ``str(p)`` is the
    text that ``parse_pipeline`` reads back.

    Attributes:
        name: what textual pipelines call it.
        takes: the forms that it accepts.
        gives: the form of its result; None where it keeps the form it is given.
    """

    name: ClassVar[str]
    takes: ClassVar[tuple[Form, ...]]
    gives: ClassVar[Form | None] = None

    def __call__(self, schedule: Schedule) -> Schedule:
        """The changed schedule.

        Raises:
            ParameterError: the argument is not a Schedule.
            PassError: the schedule has the wrong form, or the pass refuses it.
        """
        if not isinstance(schedule, Schedule):
            raise ParameterError(f"{self.name}: takes a Schedule, got a {type(schedule).__name__}")
        if schedule.form not in self.takes:
            wanted = " or ".join(form.name for form in self.takes)
            raise self.refusal(schedule, f"takes {wanted} form, this is {schedule.form.name}")
        return self.apply(schedule)

    @abstractmethod
    def apply(self, schedule: Schedule) -> Schedule:
        """The change itself; the form has been checked."""

    def refusal(self, schedule: Schedule, reason: str) -> PassError:
        """The error that says why this pass cannot take ``schedule``."""
        return PassError(f"{self.name} on {schedule.name or 'schedule'}: {reason}")

    def __str__(self) -> str:
        options = [(field.name, field.default, getattr(self, field.name)) for field in fields(self)]
        shown = ",".join(
            f"{name}={_text(value)}" for name, default, value in options if value != default
        )
        return f"{self.name}{{{shown}}}" if shown else self.name


def has(schedule: Schedule, kind: Kind) -> bool:
    """Whether an action of ``kind`` occurs, outside of fused ones."""
    return any(action.kind is kind for program in schedule.programs for action in program)


def who_waits(schedule: Schedule) -> str:
    """Why an order cannot run: each blocked rank's action and what it waits for."""
    deps = Dependencies(schedule)
    waits = "; ".join(
        f"rank {rank} at step {step}, {action}, waits for {deps.givers(missing)}"
        for rank, step, action, missing in executable_order(schedule, deps).blocked
    )
    return f"the order cannot run: {waits}"


def _text(value: object) -> str:
    if not isinstance(value, tuple):
        return str(value)
    return "/".join(map(str, value)) + "/" * (len(value) == 1)
