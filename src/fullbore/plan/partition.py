"""Layers to stages: which layers each stage holds, so that the busiest rank has least to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fullbore.errors import ParameterError
from fullbore.ir import Placement
from fullbore.sim import TableCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one layer costs for one microbatch: an embedding, a block, a head.

    Attributes:
        F, I, W: times of its forward, input gradient and weight gradient.
        held, kept: the bytes that it keeps from F to I, and from I to W.
        static: the bytes of its parameters, gradients and optimizer state.
        message: the bytes of its input, which cross ranks where it is the first of a stage.

    Raises:
        ParameterError: a number is negative, not finite or above 1e100.
    """

    F: float
    I: float  # noqa: E741 - the field's name
    W: float
    held: float = 0.0
    kept: float = 0.0
    static: float = 0.0
    message: float = 0.0

    def __post_init__(self) -> None:
        TableCosts(
            F=self.F,
            I=self.I,
            W=self.W,
            activation_bytes=self.held,
            kept_bytes=self.kept,
            static_bytes=self.static,
            message_bytes=self.message,
        )

    @property
    def time(self) -> float:
        """All its work."""
        return self.F + self.I + self.W


@dataclass(frozen=True, slots=True)
class Partition:
    """Which layers each stage holds: a range for each stage, one after another, all layers in it.

    ``load`` is the time of each rank's work for one microbatch, ``bytes`` what each rank holds.
    """

    layers: tuple[Layer, ...]
    placement: Placement
    stages: tuple[range, ...]
    load: tuple[float, ...]
    bytes: tuple[float, ...]

    def costs(self, **others: Any) -> TableCosts:
        """The costs of the stages, as the simulator and the planner take them; ``others`` are
        further fields of ``TableCosts``, such as ``latency``."""

        def total(name: str) -> list[float]:
            return [sum(getattr(self.layers[n], name) for n in stage) for stage in self.stages]

        return TableCosts(
            F=total("F"),
            I=total("I"),
            W=total("W"),
            activation_bytes=total("held"),
            kept_bytes=total("kept"),
            static_bytes=total("static"),
            message_bytes=[self.layers[stage.start].message for stage in self.stages],
            **others,
        )


def even(
    layers: Sequence[Layer], placement: Placement, *, in_flight: float | None = None
) -> Partition:
    """As many layers for each stage, the first stages one more where they do not divide.

    Raises:
        ParameterError: there are fewer layers than stages.
    """
    search = _Search(layers, placement, in_flight)
    count = placement.num_stages
    return search.partition([len(layers) * s // count for s in range(count + 1)])


def partition(
    layers: Sequence[Layer],
    placement: Placement,
    *,
    memory: float | None = None,
    in_flight: float | None = None,
) -> Partition:
    """The layers of each stage such that the busiest rank has least to do, within memory.

    Begins with even splits by number and by time, and moves one layer at a time from any stage to
    any other, passing one on at every stage between, as long as that helps. With one stage a rank
    and no limit the result is the best there is; otherwise it is the best that such moves find.

    Args:
        layers: in the order in which a microbatch passes them.
        placement: which rank holds which stage.
        memory: what a rank may hold, in bytes; None: any amount.
        in_flight: of how many microbatches a rank holds activations; P unless given.

    Raises:
        ParameterError: there are fewer layers than stages, or no split fits the memory.
    """
    found = near_best(layers, placement, memory=memory, in_flight=in_flight, count=1)[0]
    if memory is not None and max(found.bytes) > memory * (1 + 1e-9):
        raise ParameterError(
            f"partition: found no split that fits the memory, {memory:g}; the best one needs "
            f"{max(found.bytes):g}. Allow more, or use more ranks"
        )
    return found


def near_best(
    layers: Sequence[Layer],
    placement: Placement,
    *,
    memory: float | None = None,
    in_flight: float | None = None,
    count: int,
) -> list[Partition]:
    """The partition of :func:`partition` and those that one move makes of it, the best first.

    Raises:
        ParameterError: there are fewer layers than stages.
    """
    search = _Search(layers, placement, in_flight, memory)
    cuts = min(map(search.improved, search.starts()), key=search.worth)
    others = sorted(search.moves(cuts), key=search.worth) if count > 1 else []
    return [search.partition(chosen) for chosen in [cuts, *others[: count - 1]]]


class _Search:
    """Cuts are where stages begin, from 0 to the number of layers."""

    def __init__(
        self,
        layers: Sequence[Layer],
        placement: Placement,
        in_flight: float | None,
        memory: float | None = None,
    ) -> None:
        if len(layers) < placement.num_stages:
            raise ParameterError(
                f"partition: {len(layers)} layers cannot fill {placement.num_stages} stages; "
                "use fewer stages"
            )
        self._layers, self._placement, self._memory = tuple(layers), placement, memory
        flying = placement.num_ranks if in_flight is None else in_flight
        self._time, self._bytes = [0.0], [0.0]  # of all layers before
        for layer in layers:
            self._time.append(self._time[-1] + layer.time)
            self._bytes.append(self._bytes[-1] + layer.static + flying * layer.held)

    def starts(self) -> Iterator[list[int]]:
        """Even splits by number, and by time."""
        count, total = self._placement.num_stages, len(self._layers)
        yield [total * s // count for s in range(count + 1)]
        cuts = [0]
        for s in range(1, count):
            wanted = self._time[-1] * s / count
            first, last = cuts[-1] + 1, total - (count - s)
            cuts.append(min(range(first, last + 1), key=lambda n: abs(self._time[n] - wanted)))
        yield [*cuts, total]
        if self._placement.shape == "linear" and self._memory is None:
            yield self._exact()

    def _exact(self) -> list[int]:
        """The best split with one stage a rank: the best of the layers so far, stage by stage."""
        total, count = len(self._layers), self._placement.num_stages
        best = [(self._time[n], [0, n]) for n in range(total + 1)]
        for stage in range(2, count + 1):
            best = [
                min(
                    (
                        (max(best[n][0], self._time[end] - self._time[n]), [*best[n][1], end])
                        for n in range(stage - 1, end)
                    ),
                    default=(float("inf"), []),
                )
                for end in range(total + 1)
            ]
        return best[total][1]

    def by_rank(self, cuts: Sequence[int], before: Sequence[float]) -> list[float]:
        """A sum for each rank."""
        found = [0.0] * self._placement.num_ranks
        for (first, end), rank in zip(pairwise(cuts), self._placement.ranks, strict=True):
            found[rank] += before[end] - before[first]
        return found

    def worth(self, cuts: Sequence[int]) -> tuple[float, float, float]:
        """Less is better: what is over the memory, the busiest rank, and how uneven all are."""
        loads = self.by_rank(cuts, self._time)
        over = 0.0
        if self._memory is not None:
            limit = self._memory * (1 + 1e-9)
            over = sum(max(0.0, held - limit) for held in self.by_rank(cuts, self._bytes))
        return over, max(loads), sum(load * load for load in loads)

    def improved(self, cuts: list[int]) -> list[int]:
        """Moves as long as they help."""
        worth = self.worth(cuts)
        while True:
            better = min(self.moves(cuts), key=self.worth, default=cuts)
            found = self.worth(better)
            if found >= worth:
                return cuts
            cuts, worth = better, found

    def moves(self, cuts: list[int]) -> Iterator[list[int]]:
        """What moving one layer makes of them."""
        count = len(cuts) - 1
        for first in range(1, count):
            for end in range(first + 1, count + 1):
                for step in (-1, 1):
                    moved = [*cuts[:first], *(cut + step for cut in cuts[first:end]), *cuts[end:]]
                    if all(a < b for a, b in pairwise(moved)):
                        yield moved

    def partition(self, cuts: Sequence[int]) -> Partition:
        """The partition of these cuts."""
        return Partition(
            self._layers,
            self._placement,
            tuple(range(first, end) for first, end in pairwise(cuts)),
            tuple(self.by_rank(cuts, self._time)),
            tuple(self.by_rank(cuts, self._bytes)),
        )
