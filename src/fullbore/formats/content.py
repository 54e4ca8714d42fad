"""What a file says about a schedule, and how the rest follows from its actions."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from fullbore.errors import FormatError, ParameterError
from fullbore.ir import KINDS, Form, Group, Kind, Placement, Program, Schedule

_BACKWARD = {Kind.B, Kind.I, Kind.W}


@dataclass(frozen=True, slots=True)
class Content:
    """The actions, and whatever else was stated; None where nothing was."""

    programs: tuple[Program, ...]
    placement: Placement | None = None
    num_microbatches: int | None = None
    form: Form | None = None
    forward_only: bool | None = None
    name: str = ""
    parameters: tuple[tuple[str, int | str], ...] = ()

    @classmethod
    def of(cls, schedule: Schedule) -> Content:
        """Everything that ``schedule`` says."""
        return cls(**{field.name: getattr(schedule, field.name) for field in fields(cls)})

    def bare(self) -> Content:
        """The actions alone."""
        return Content(self.programs)

    def stating(
        self,
        *,
        placement: Placement | None,
        num_microbatches: int | None,
        form: Form | None,
    ) -> Content:
        """With what the caller knows.

        Raises:
            FormatError: it contradicts what the file says.
        """
        given: dict[str, Any] = {
            "placement": placement,
            "num_microbatches": num_microbatches,
            "form": form,
        }
        known = {name: value for name, value in given.items() if value is not None}
        for name, value in known.items():
            stated = getattr(self, name)
            if stated is not None and stated != value:
                raise FormatError(f"{name} is {_shown(stated)} here, {_shown(value)} was asked for")
        return replace(self, **known)

    def schedule(self) -> Schedule:
        """The schedule, with what is not stated inferred from the actions.

        A stage is where it first appears, the microbatches go up to the highest one, the form is
        ``LOWERED`` if anything but computation is there, and a schedule without any backward is
        forward-only.

        Raises:
            FormatError: the actions do not tell, or contradict what is stated.
        """
        kinds, highest = self._survey()
        form, forward_only = self.form, self.forward_only
        if form is None:
            computes = all(KINDS[kind].group is Group.COMPUTE for kind in kinds)
            form = Form.COMPUTE if computes else Form.LOWERED
        if forward_only is None:
            forward_only = not kinds & _BACKWARD
        if self.num_microbatches is None and highest < 0:
            raise FormatError("no action has a microbatch; say num_microbatches, their number")
        try:
            return Schedule(
                self.programs,
                Placement.infer(self.programs) if self.placement is None else self.placement,
                highest + 1 if self.num_microbatches is None else self.num_microbatches,
                form,
                forward_only,
                self.name,
                self.parameters,
            )
        except ParameterError as error:
            raise FormatError(str(error)) from error

    def _survey(self) -> tuple[set[Kind], int]:
        """The kinds that occur, parts included, and the highest microbatch."""
        kinds, highest = set(), -1
        for program in self.programs:
            for _, kind, microbatch, parts in program:
                kinds.add(kind)
                highest = max(highest, microbatch)
                for part in parts:
                    kinds.add(part.kind)
                    highest = max(highest, part.microbatch)
        return kinds, highest


def differences(schedule: Schedule) -> str:
    """What is lost where only the actions are kept, in words; empty if nothing is.

    Name and parameters are labels, and not counted.
    """
    try:
        found = Content.of(schedule).bare().schedule()
    except FormatError as error:
        return str(error)
    return ", ".join(
        f"{name} would be {_shown(getattr(found, name))} instead of {_shown(value)}"
        for name in ("placement", "num_microbatches", "form", "forward_only")
        if (value := getattr(schedule, name)) != getattr(found, name)
    )


def _shown(value: object) -> str:
    if isinstance(value, Placement):
        return " ".join(map(str, value.ranks[:32])) + (" ..." if len(value.ranks) > 32 else "")
    return str(value.value) if isinstance(value, Form) else str(value)
