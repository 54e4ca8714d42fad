"""What things cost: times, bytes and links, by stage or by rank."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any, Protocol

from fullbore.errors import ParameterError
from fullbore.ir import Placement

Edge = tuple[int, int]
"""(sending rank, receiving rank)."""

PerStage = float | Sequence[float]
"""A number for each stage, or one for all."""

PerEdge = float | Mapping[Edge, float]
"""A number for each directed pair of ranks, or one for all."""

_MOST = 1e100
"""What no time and no number of bytes is above, so that sums of them stay finite."""

_PER_STAGE = (
    *("F", "I", "W", "B", "send", "unshard", "reshard", "reduce_grad"),
    *("message_bytes", "activation_bytes", "kept_bytes", "static_bytes"),
)


class Costs(Protocol):
    """A cost model: gives the table for a placement."""

    def table(self, placement: Placement) -> Table:
        """The costs of each stage.

        Raises:
            ParameterError: they do not fit the placement.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Costs worked out for one placement: a number for every stage. See ``TableCosts`` for what
    each of them means."""

    F: tuple[float, ...]
    I: tuple[float, ...]  # noqa: E741 - the field's name
    W: tuple[float, ...]
    B: tuple[float, ...]
    send: tuple[float, ...]
    unshard: tuple[float, ...]
    reshard: tuple[float, ...]
    reduce_grad: tuple[float, ...]
    message_bytes: tuple[float, ...]
    activation_bytes: tuple[float, ...]
    kept_bytes: tuple[float, ...]
    static_bytes: tuple[float, ...]
    overlap: PerEdge | None
    latency: PerEdge
    bandwidth: PerEdge | None
    recompute: frozenset[int]
    unit: str

    def link(self, edge: Edge) -> tuple[float, float]:
        """The latency of a directed pair of ranks, and the time that a byte occupies its link."""
        latency, bandwidth = _of(self.latency, edge), _of(self.bandwidth, edge)
        return latency or 0, 1 / bandwidth if bandwidth else 0

    def block(self, forward: int, backward: int) -> float | None:
        """The time of an overlap of these stages' work as one block; None: its parts in turn."""
        return _of(self.overlap, (forward, backward))


@dataclass(frozen=True, kw_only=True)
class TableCosts:
    """Costs by stage. Times are in any one unit, bytes in bytes.

    Attributes:
        F, I, W: the time of a forward, an input gradient, a weight gradient.
        B: that of a full backward; I + W if None.
        overlap: that of an ``OVERLAP_F_B`` as one block: a number, or one for each pair (stage of
            the F, stage of the B or I). None, or a missing pair: its parts run in turn.
        send: how long posting a message made by the stage keeps the rank from computing.
        unshard, reshard, reduce_grad: times on the sharding stream.
        latency: from the last byte's departure to its arrival, by directed pair of ranks.
        bandwidth: bytes per unit of time, likewise; None: messages occupy no link.
        message_bytes: the size of a stage's input, and of the gradient that goes back for it. The
            first stage's is the batch's and crosses no link.
        activation_bytes: what a stage holds of a microbatch from F to I (or B), its input included.
        kept_bytes: what it holds from I to W; None: all of ``activation_bytes``.
        static_bytes: what it holds all the time: parameters, gradients, optimizer state.
        recompute: the stages whose I or B runs the forward again. They hold ``message_bytes``
            between F and I.
        unit: what times are in, for people: ``"ms"``, say.

    Raises:
        ParameterError: a number is negative, not finite or above 1e100, or tables differ in length.
    """

    F: PerStage
    I: PerStage  # noqa: E741 - the field's name
    W: PerStage
    B: PerStage | None = None
    overlap: PerEdge | None = None
    send: PerStage = 0
    unshard: PerStage = 0
    reshard: PerStage = 0
    reduce_grad: PerStage = 0
    latency: PerEdge = 0
    bandwidth: PerEdge | None = None
    message_bytes: PerStage = 0
    activation_bytes: PerStage = 0
    kept_bytes: PerStage | None = None
    static_bytes: PerStage = 0
    recompute: Collection[int] = frozenset()
    unit: str = ""

    def __post_init__(self) -> None:
        lengths = {}
        for name in _PER_STAGE:
            value = getattr(self, name)
            if value is None and name not in ("B", "kept_bytes"):
                raise ParameterError(f"costs: {name} must be a number of 0 or more, got None")
            if isinstance(value, Sequence) and not isinstance(value, str):
                value = tuple(value)
                object.__setattr__(self, name, value)
                lengths[name] = len(value)
            for number in _numbers(value):
                _check(name, number)
        if len(set(lengths.values())) > 1:
            raise ParameterError(f"costs: one number a stage is needed everywhere, got {lengths}")
        for name in ("overlap", "latency", "bandwidth"):
            for number in _numbers(getattr(self, name)):
                _check(name, number)
                if name == "bandwidth" and number < 1 / _MOST:  # type: ignore[operator]
                    raise ParameterError(
                        f"costs: bandwidth must be more than 0, {1 / _MOST:g} at least; "
                        f"got {number!r}"
                    )
        object.__setattr__(self, "recompute", frozenset(self.recompute))

    def table(self, placement: Placement) -> Table:
        """See ``Costs.table``."""
        count = placement.num_stages
        rows = {name: _spread(name, getattr(self, name), count) for name in _PER_STAGE}
        if self.B is None:
            rows["B"] = tuple(i + w for i, w in zip(rows["I"], rows["W"], strict=True))
        if self.kept_bytes is None:
            rows["kept_bytes"] = rows["activation_bytes"]
        strange = sorted(stage for stage in self.recompute if not 0 <= stage < count)
        if strange:
            raise ParameterError(
                f"costs: recompute names stage {strange[0]}; stages are 0..{count - 1}"
            )
        return Table(
            **rows,
            overlap=self.overlap,
            latency=self.latency,
            bandwidth=self.bandwidth,
            recompute=frozenset(self.recompute),
            unit=self.unit,
        )


@dataclass(frozen=True, kw_only=True)
class UniformCosts:
    """Costs of everything that one rank owns, for one microbatch, as the literature states them.
    A rank's stages share them evenly: with V stages each costs F / V, and so on.

    Attributes:
        F, I, W, B, overlap, send: as of ``TableCosts``, by rank.
        latency, bandwidth, unit: as there.
        message_bytes: the size of one message, whatever the number of stages.
        activation_bytes, kept_bytes: what a rank holds of a microbatch, shared as the times are.
        static_bytes: what a rank holds all the time.

    Raises:
        ParameterError: a number is negative, not finite or above 1e100.
    """

    F: float
    I: float  # noqa: E741 - the field's name
    W: float
    B: float | None = None
    overlap: float | None = None
    send: float = 0
    latency: PerEdge = 0
    bandwidth: PerEdge | None = None
    message_bytes: float = 0
    activation_bytes: float = 0
    kept_bytes: float | None = None
    static_bytes: float = 0
    unit: str = ""

    def __post_init__(self) -> None:
        TableCosts(**{field.name: getattr(self, field.name) for field in fields(self)})

    def table(self, placement: Placement) -> Table:
        """See ``Costs.table``."""
        counts = [len(placement.stages_of(rank)) for rank in range(placement.num_ranks)]
        shares = [counts[rank] for rank in placement.ranks]

        def share(value: float | None) -> tuple[float, ...] | None:
            return None if value is None else tuple(value / count for count in shares)

        named: dict[str, Any] = {
            name: share(getattr(self, name))
            for name in ("F", "I", "W", "B", "activation_bytes", "kept_bytes", "static_bytes")
        }
        if self.overlap is not None:
            named["overlap"] = self.overlap / max(counts)
        return TableCosts(
            **named,
            send=self.send,
            latency=self.latency,
            bandwidth=self.bandwidth,
            message_bytes=self.message_bytes,
            unit=self.unit,
        ).table(placement)


def parse_costs(text: str) -> UniformCosts:
    """Costs given in a word: ``F,I,W`` or ``F,I,W,latency``, of everything one rank owns.

    Raises:
        ParameterError: the text is no such list of numbers.
    """
    parts = text.split(",")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (3, 4):
        raise ParameterError(
            f"costs are three or four numbers, F,I,W or F,I,W,latency, or a file; got {text!r}"
        )
    return UniformCosts(F=numbers[0], I=numbers[1], W=numbers[2], latency=(*numbers, 0)[3])


def _numbers(value: object) -> Sequence[object]:
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return tuple(value.values())
    return value if isinstance(value, tuple) else (value,)


def _check(name: str, number: object) -> None:
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if not is_number or not 0 <= number < inf:  # type: ignore[operator]
        raise ParameterError(f"costs: {name} must be a number of 0 or more, got {number!r}")
    if number > _MOST:  # type: ignore[operator]
        raise ParameterError(f"costs: {name} must be {_MOST:g} at most, got {number!r}")


def _of(value: PerEdge | None, pair: Edge) -> float | None:
    return value.get(pair) if isinstance(value, Mapping) else value


def _spread(name: str, value: Any, count: int) -> tuple[float, ...]:
    if not isinstance(value, tuple):
        return (value,) * count
    if len(value) != count:
        raise ParameterError(
            f"costs: {name} has {len(value)} numbers for {count} stages; give one a stage"
        )
    return value
