"""What a schedule family is: its build function, and which parameters it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import index
from typing import Literal

from fullbore.errors import ParameterError
from fullbore.ir import Placement, Schedule

Build = Callable[..., Schedule]
Shape = Literal["linear", "loop", "vee", "any"]

# Beyond these a number is taken for a slip of the finger: the schedule would fill the memory.
MOST_RANKS = 3_000
MOST_FORWARDS = 10_000_000  # stages times microbatches


@dataclass(frozen=True, slots=True)
class Family:
    """One family of schedules.

    Attributes:
        name: what users call it.
        build: takes a placement of the family's shape and the number of microbatches (1 or more);
            gives the schedule, in compute form. Options come by keyword, if they are given.
        shape: the placement it needs. ``linear`` has one stage a rank, ``loop`` one or more,
            ``vee`` two. ``any`` takes every placement, and loops where none is given.
        description: the idea in one line.
        source: where the family was first described.
        aliases: other names, PyTorch's among them.
        instead: the family to use for another number of stages a rank, where this one is fixed.
        options: what else may be chosen: whole numbers from 1 on, by name, each with its meaning.
        uses_costs: whether the order depends on costs. If so, ``build`` takes ``costs``, a
            ``StageCosts``; without them it is for F = I = W.
    """

    name: str
    build: Build
    shape: Shape
    description: str
    source: str
    aliases: tuple[str, ...] = ()
    instead: str = "interleaved_1f1b"
    options: Mapping[str, str] = field(default_factory=dict)
    uses_costs: bool = False

    @property
    def fixed_stages_per_rank(self) -> bool:
        """Whether ``default_stages_per_rank`` is the only choice."""
        return self.shape in ("linear", "vee")

    @property
    def default_stages_per_rank(self) -> int:
        """The number of stages a rank if the user gives none."""
        return 2 if self.shape in ("loop", "vee") else 1

    def place(
        self, num_ranks: int, stages_per_rank: int | None, placement: Placement | None
    ) -> Placement:
        """The placement for these parameters.

        Raises:
            ParameterError: the family does not take them, or they contradict each other.
        """
        num_ranks = self.count("num_ranks", num_ranks, most=MOST_RANKS)
        if placement is not None and not isinstance(placement, Placement):
            raise ParameterError(
                f"{self.name}: placement must be a Placement, such as Placement((0, 1, 1, 0)); "
                f"got {placement!r}"
            )
        if self.shape == "any" and placement is not None:
            return self._given(placement, num_ranks, stages_per_rank)
        default = self.default_stages_per_rank
        chosen = self.count(
            "stages_per_rank",
            default if stages_per_rank is None else stages_per_rank,
            most=MOST_FORWARDS // num_ranks,
        )
        if self.fixed_stages_per_rank and chosen != default:
            raise ParameterError(
                f"{self.name}: stages_per_rank must be {default}; got {chosen}. "
                f"Use {self.instead} for another number"
            )
        own = Placement.vee(num_ranks) if self.shape == "vee" else Placement.loop(num_ranks, chosen)
        if placement is not None and placement != own:
            raise ParameterError(
                f"{self.name}: placement must be the {self.shape} {own.ranks} for num_ranks="
                f"{num_ranks} and stages_per_rank={chosen}; got {placement.ranks}. Leave it out, "
                "or use forward_only, which takes any"
            )
        return own

    def _given(
        self, placement: Placement, num_ranks: int, stages_per_rank: int | None
    ) -> Placement:
        if placement.num_ranks != num_ranks:
            raise ParameterError(
                f"{self.name}: num_ranks must be that of the placement, {placement.num_ranks}; "
                f"got {num_ranks}"
            )
        if stages_per_rank is None:
            return placement
        for rank in range(num_ranks):
            if (held := len(placement.stages_of(rank))) != stages_per_rank:
                raise ParameterError(
                    f"{self.name}: stages_per_rank must agree with the placement; got "
                    f"{stages_per_rank}, but rank {rank} holds {held}. Leave stages_per_rank out"
                )
        return placement

    def chosen(self, options: Mapping[str, int]) -> dict[str, int]:
        """The options, if the family has them.

        Raises:
            ParameterError: it does not, or one is no whole number from 1 on.
        """
        strange = next((name for name in options if name not in self.options), None)
        if strange is not None:
            known = "; ".join(f"{name} ({what})" for name, what in self.options.items()) or "none"
            raise ParameterError(
                f"{self.name}: there is no option {strange!r}; it has these: {known}"
            )
        return {
            name: self.count(name, value, most=MOST_FORWARDS) for name, value in options.items()
        }

    def count(self, parameter: str, value: int, *, most: int) -> int:
        """``value`` if it is a whole number from 1 to ``most``.

        Raises:
            ParameterError: it is not.
        """
        try:
            number = index(value)
        except TypeError:
            raise ParameterError(
                f"{self.name}: {parameter} must be a whole number; got {value!r}. "
                "Divide with // to get one"
            ) from None
        if number < 1:
            raise ParameterError(f"{self.name}: {parameter} must be at least 1; got {number}")
        if number > most:
            raise ParameterError(
                f"{self.name}: {parameter} must be at most {most:,} here; a larger schedule does "
                "not fit the memory of most machines"
            )
        return number
