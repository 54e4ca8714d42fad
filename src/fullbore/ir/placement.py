"""Which rank holds which stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import index

from fullbore.errors import ParameterError
from fullbore.ir.action import Action

_MOST_STAGES = 10_000_000


@dataclass(frozen=True, slots=True)
class Placement:
    """A map from stage to rank: ``ranks[stage]`` is the rank that holds ``stage``.

    Raises:
        ParameterError: the ranks are not a tuple of whole numbers, there is no stage, a rank is
            negative, or a rank holds no stage.
    """

    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        # A list would make equal placements unequal.
        if type(self.ranks) is not tuple or not set(map(type, self.ranks)) <= {int}:
            raise ParameterError(
                f"placement: the ranks are a tuple of whole numbers such as (0, 1, 1, 0); "
                f"got {self.ranks!r}"
            )
        if not self.ranks:
            raise ParameterError("placement: a schedule needs at least one stage")
        used = set(self.ranks)
        if min(used) < 0:
            raise ParameterError(f"placement: rank {min(used)} is negative")
        if len(used) != max(used) + 1:
            missing = next(r for r in range(len(used) + 1) if r not in used)
            raise ParameterError(f"placement: rank {missing} holds no stage; ranks are 0..P-1")

    @classmethod
    def linear(cls, num_ranks: int) -> Placement:
        """One stage a rank, in order."""
        return cls.loop(num_ranks, 1)

    @classmethod
    def loop(cls, num_ranks: int, stages_per_rank: int) -> Placement:
        """Stage ``s`` on rank ``s mod num_ranks``.

        Raises:
            ParameterError: a number is no whole number from 1 on, or there are too many stages.
        """
        ranks, count = _count("ranks", num_ranks), _count("stages a rank", stages_per_rank)
        if ranks * count > _MOST_STAGES:
            raise ParameterError(
                f"placement: {ranks:,} ranks of {count:,} stages are too many; use "
                f"{_MOST_STAGES:,} stages at most"
            )
        return cls(tuple(range(ranks)) * count)

    @classmethod
    def vee(cls, num_ranks: int) -> Placement:
        """Two stages a rank: down the ranks and back up again (0..P-1, P-1..0)."""
        down = cls.linear(num_ranks).ranks
        return cls(down + down[::-1])

    @classmethod
    def infer(cls, programs: Sequence[Iterable[Action]]) -> Placement:
        """The placement that the programs imply: a stage is where it first appears.

        Raises:
            ParameterError: a rank has no action, or the stages are not 0..S-1.
        """
        found: dict[int, int] = {}
        for rank, program in enumerate(programs):
            for leaf in chain.from_iterable(action.leaves for action in program):
                found.setdefault(leaf.stage, rank)
        if not found:
            raise ParameterError("placement: the programs hold no action")
        if len(found) != max(found) + 1 or min(found) != 0:
            missing = next(s for s in range(len(found) + 1) if s not in found)
            raise ParameterError(
                f"placement: stage {missing} appears on no rank although stage {max(found)} does; "
                f"stages are 0..S-1. Add the actions of stage {missing}, or renumber the stages "
                "above it"
            )
        empty = set(range(len(programs))) - set(found.values())
        if empty:
            raise ParameterError(
                f"placement: rank {min(empty)} holds no stage of its own, only such as other ranks "
                "have before it; say the placement if that is meant"
            )
        return cls(tuple(found[s] for s in range(len(found))))

    @property
    def num_ranks(self) -> int:
        """P."""
        return max(self.ranks) + 1

    @property
    def num_stages(self) -> int:
        """S."""
        return len(self.ranks)

    @property
    def shape(self) -> str:
        """``linear``, ``loop``, ``vee`` or ``custom``."""
        num_ranks, num_stages = self.num_ranks, self.num_stages
        if self == Placement.linear(num_ranks):
            return "linear"
        if num_stages == 2 * num_ranks and self == Placement.vee(num_ranks):
            return "vee"
        if num_stages % num_ranks == 0 and self == Placement.loop(
            num_ranks, num_stages // num_ranks
        ):
            return "loop"
        return "custom"

    def rank_of(self, stage: int) -> int:
        """The rank that holds ``stage``.

        Raises:
            ParameterError: there is no such stage.
        """
        if not 0 <= stage < self.num_stages:
            raise ParameterError(
                f"placement: there is no stage {stage}; stages are 0..{self.num_stages - 1}"
            )
        return self.ranks[stage]

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages on ``rank``, ascending."""
        return tuple(s for s, r in enumerate(self.ranks) if r == rank)

    def sum_by_rank(self, values: Sequence[float]) -> list[float]:
        """What the stages of each rank have together, given a number for each stage."""
        sums: list[float] = [0] * self.num_ranks
        for rank, value in zip(self.ranks, values, strict=True):
            sums[rank] += value
        return sums

    def crosses(self, stage: int) -> bool:
        """Whether the step from ``stage - 1`` to ``stage`` leads to another rank."""
        return stage > 0 and self.ranks[stage - 1] != self.ranks[stage]


def _count(name: str, value: int) -> int:
    try:
        count = index(value)
    except TypeError:
        count = 0
    if count < 1:
        raise ParameterError(
            f"placement: the number of {name} must be a whole number from 1 on; got {value!r}"
        )
    return count
