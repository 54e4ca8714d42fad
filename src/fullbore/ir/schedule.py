"""The schedule: for every rank, the actions it runs, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain
from operator import itemgetter

from fullbore.errors import ParameterError
from fullbore.ir.action import Action
from fullbore.ir.kinds import Kind
from fullbore.ir.placement import Placement

Program = tuple[Action, ...]


class Form(Enum):
    """How much a schedule spells out."""

    COMPUTE = "compute"
    LOWERED = "lowered"


_FIELDS: tuple[tuple[str, type, str], ...] = (
    ("stage", int, "a whole number"),
    ("kind", Kind, "a Kind, such as Kind.F"),
    ("microbatch", int, "a whole number"),
    ("parts", tuple, "a tuple of Actions"),
)
_parts_of = itemgetter(Action._fields.index("parts"))

_TYPES = {
    "placement": Placement,
    "num_microbatches": int,
    "form": Form,
    "forward_only": bool,
    "name": str,
    "parameters": tuple,
}


@dataclass(frozen=True, slots=True)
class Schedule:
    """What every rank runs, in order. Order only: idle time belongs to a timeline.

    Attributes:
        programs: one tuple of actions a rank.
        placement: which rank holds which stage.
        num_microbatches: M.
        form: ``COMPUTE`` (F, B, I, W, overlaps) or ``LOWERED`` (plus communication, sharding and
            reduction).
        forward_only: the schedule runs no backward at all.
        name, parameters: where it comes from. Labels: two schedules that run the same work are
            equal whatever they are called.

    Raises:
        ParameterError: something is of another type than it should be, the number of programs is
            not the number of ranks, or ``num_microbatches`` is under 1.
    """

    programs: tuple[Program, ...]
    placement: Placement
    num_microbatches: int
    form: Form = Form.COMPUTE
    forward_only: bool = False
    name: str = field(default="", compare=False)
    parameters: tuple[tuple[str, int | str], ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        self._check_programs()
        # Text in place of a form, say, would pass for neither form and check nothing.
        for name, wanted in _TYPES.items():
            if type(value := getattr(self, name)) is not wanted:
                raise ParameterError(
                    f"schedule: {name} must be of type {wanted.__name__}, got {value!r}"
                )
        if not all(map(_is_parameter, self.parameters)):
            raise ParameterError(
                "schedule: parameters are pairs of a name and a whole number or text, got "
                f"{self.parameters!r}"
            )
        if len(self.programs) != self.placement.num_ranks:
            raise ParameterError(
                f"schedule: {len(self.programs)} programs, but the placement names "
                f"{self.placement.num_ranks} ranks"
            )
        if self.num_microbatches < 1:
            raise ParameterError(
                f"schedule: num_microbatches must be at least 1, got {self.num_microbatches}"
            )

    def _check_programs(self) -> None:
        # A dict would be taken for its keys, a list would make equal schedules unequal.
        given: object = self.programs
        if type(given) is not tuple or not all(type(part) is tuple for part in given):
            raise ParameterError(
                "schedule: programs are a tuple that holds one tuple of actions for each rank, "
                "from 0 to P-1"
            )
        level: Sequence[Program] = self.programs
        while level:
            _check_actions(level)
            # Parts should have none themselves, which is for the verifier to say.
            level = [*filter(None, map(_parts_of, chain.from_iterable(level)))]

    @property
    def num_ranks(self) -> int:
        """P."""
        return self.placement.num_ranks

    @property
    def num_stages(self) -> int:
        """S."""
        return self.placement.num_stages

    @property
    def num_actions(self) -> int:
        """The length of all programs together; a fused action counts once."""
        return sum(map(len, self.programs))

    def actions(self) -> Iterator[tuple[int, int, Action]]:
        """All actions as ``(rank, step, action)``, rank by rank."""
        for rank, program in enumerate(self.programs):
            for step, action in enumerate(program):
                yield rank, step, action

    def with_programs(
        self, programs: Sequence[Sequence[Action]], *, form: Form | None = None
    ) -> Schedule:
        """This schedule with other programs, and another form if one is given."""
        return replace(
            self, programs=tuple(map(tuple, programs)), form=self.form if form is None else form
        )

    def __str__(self) -> str:
        # A picture is a view, a layer above; it is wanted wherever a schedule is printed.
        from fullbore.view.grid import render_grid

        return render_grid(self)

    def _repr_html_(self) -> str:
        from fullbore.view.grid import render_html

        return render_html(self)


def _check_actions(groups: Sequence[Program]) -> None:
    actions = chain.from_iterable
    if strange := set(map(type, actions(groups))) - {Action}:
        raise ParameterError(
            f"schedule: programs hold Actions, not {strange.pop().__name__}; parse_action "
            "makes an Action of its text"
        )
    for place, (name, wanted, text) in enumerate(_FIELDS):
        if strange := set(map(type, map(itemgetter(place), actions(groups)))) - {wanted}:
            raise ParameterError(
                f"schedule: an action's {name} is {text}, not {strange.pop().__name__}"
            )


def _is_parameter(pair: object) -> bool:
    if type(pair) is not tuple or len(pair) != 2:
        return False
    return isinstance(pair[0], str) and isinstance(pair[1], int | str)
