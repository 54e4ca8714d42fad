"""Costs by layer: stages cost what their layers do, on whatever placement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType

from fullbore.errors import ParameterError
from fullbore.ir import Placement
from fullbore.plan.partition import Layer, Partition, even, partition
from fullbore.sim import Table, TableCosts

Split = Callable[[Sequence[Layer], Placement], Partition]

_LARGEST = 1_000_000_000
_MOST_LAYERS = 100_000
_BYTES_A_PARAMETER = 16
"""Weight and gradient of 16 bits; of 32 bits, a copy of the weight and AdamW's two averages."""


@dataclass(frozen=True, kw_only=True)
class LayerCosts:
    """Costs of layers, to be used like any other costs: every placement splits them in its way.

    Attributes:
        layers: in the order in which a microbatch passes them.
        latency, bandwidth, unit: as of ``TableCosts``, for all links.
        memory: what a rank may hold, in bytes, for the split to keep to: with P microbatches'
            activations if it can be, else with fewer; None: any amount.
        chosen: the split of some placements; all others are those of :func:`partition`.

    Raises:
        ParameterError: there is no layer.
    """

    layers: tuple[Layer, ...]
    latency: float = 0
    bandwidth: float | None = None
    unit: str = ""
    memory: float | None = None
    chosen: Mapping[Placement, Partition] = field(default_factory=lambda: MappingProxyType({}))
    _known: dict[Placement, tuple[Partition, Table]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not self.layers:
            raise ParameterError("costs by layer: give one layer or more")

    def split(self, placement: Placement) -> Partition:
        """Which layers each stage has.

        Raises:
            ParameterError: there are fewer layers than stages.
        """
        return self._find(placement)[0]

    def table(self, placement: Placement) -> Table:
        """See ``Costs.table``."""
        return self._find(placement)[1]

    def _find(self, placement: Placement) -> tuple[Partition, Table]:
        # A search asks for the same table again and again.
        if placement not in self._known:
            split = self.chosen.get(placement) or self._split(placement)
            self._known[placement] = split, self.costs_of(split).table(placement)
        return self._known[placement]

    def costs_of(self, split: Partition) -> TableCosts:
        """The costs of the stages of a split."""
        return split.costs(latency=self.latency, bandwidth=self.bandwidth, unit=self.unit)

    def even(self, placement: Placement) -> Partition:
        """The split by number, to compare with.

        Raises:
            ParameterError: there are fewer layers than stages.
        """
        return even(self.layers, placement)

    def _split(self, placement: Placement) -> Partition:
        if self.memory is not None:
            for in_flight in (placement.num_ranks, placement.num_ranks / 2, 1):
                with suppress(ParameterError):
                    return partition(
                        self.layers, placement, memory=self.memory, in_flight=in_flight
                    )
        return partition(self.layers, placement)


def layer_costs(costs: TableCosts) -> LayerCosts:
    """Costs by stage taken as costs by layer: those of a pipeline with a layer a stage, measured or
    written down. Of what belongs to a pair of ranks the median holds for all.

    Raises:
        ParameterError: no field has a number for each layer.
    """
    values = (getattr(costs, name) for name in ("F", "I", "W", "activation_bytes", "static_bytes"))
    count = next((len(value) for value in values if isinstance(value, tuple)), 0)
    if not count:
        raise ParameterError("costs by layer: give a list of numbers, one a layer, for F at least")
    table = costs.table(Placement(tuple(range(count))))
    return LayerCosts(
        layers=tuple(
            Layer(F=f, I=i, W=w, held=held, kept=kept, static=static, message=message)
            for f, i, w, held, kept, static, message in zip(
                table.F,
                table.I,
                table.W,
                table.activation_bytes,
                table.kept_bytes,
                table.static_bytes,
                table.message_bytes,
                strict=True,
            )
        ),
        latency=_for_all(table.latency) or 0,
        bandwidth=_for_all(table.bandwidth),
        unit=costs.unit,
    )


def transformer(
    *, layers: int, hidden: int, heads: int, sequence: int, vocabulary: int = 0, rows: int = 1
) -> LayerCosts:
    """What the layers of a GPT cost, by formula: times in 10^12 floating-point operations, that is
    in milliseconds at a petaflop a second.

    A block takes ``sbh(24h + 4s)`` operations forward, ``sbh(24h + 8s)`` for the gradient of its
    input and ``24sbh^2`` for those of its weights; it holds ``sb(34h + 5as)`` bytes from F to I and
    ``32sbh`` from I to W (Qi et al. 2023, arXiv:2401.10241, table 1; Korthikanti et al. 2022,
    arXiv:2205.05198): with activations of 16 bits, dropout, and attention that stores its scores.
    With a vocabulary there is an embedding in front, which multiplies nothing, and a head behind:
    ``2sbhV`` operations each way and for its weights, and logits of 32 bits. Parameters take 16
    bytes each, with gradient and AdamW's state.

    Args:
        layers: blocks.
        hidden, heads, sequence: h, a and s.
        vocabulary: V; 0 leaves embedding and head out.
        rows: b, of a microbatch.

    Raises:
        ParameterError: a number is too small or too large, or no whole one.
    """
    for name, size, least in (
        *(("layers", layers, 1), ("hidden", hidden, 1), ("heads", heads, 1)),
        *(("sequence", sequence, 1), ("rows", rows, 1), ("vocabulary", vocabulary, 0)),
    ):
        most = _MOST_LAYERS if name == "layers" else _LARGEST
        if type(size) is not int or not least <= size <= most:
            raise ParameterError(
                f"transformer: {name} must be a whole number from {least} to {most:,}; got {size!r}"
            )
    h, s, tokens = hidden, sequence, sequence * rows
    message = 2 * tokens * h
    matmuls = 24 * h * tokens * h / 1e12
    scores = 4 * s * tokens * h / 1e12
    block = Layer(
        F=matmuls + scores,
        I=matmuls + 2 * scores,
        W=matmuls,
        held=tokens * (34 * h + 5 * heads * s),
        kept=32 * tokens * h,
        static=_BYTES_A_PARAMETER * (12 * h * h + 13 * h),
        message=message,
    )
    ends = [(), ()] if not vocabulary else _ends(h, s, tokens, vocabulary)
    return LayerCosts(layers=(*ends[0], *[block] * layers, *ends[1]), unit="TFLOP")


def _ends(h: int, s: int, tokens: int, vocabulary: int) -> list[tuple[Layer, ...]]:
    logits, product = 4 * tokens * vocabulary, 2 * tokens * h * vocabulary / 1e12
    embedding = Layer(F=0, I=0, W=0, static=_BYTES_A_PARAMETER * h * (vocabulary + s))
    head = Layer(
        F=product,
        I=product,
        W=product,
        held=2 * tokens * h + logits,
        kept=2 * tokens * h + logits,
        static=_BYTES_A_PARAMETER * h * (vocabulary + 2),
        message=2 * tokens * h,
    )
    return [(embedding,), (head,)]


def _for_all(value: object) -> float | None:
    if isinstance(value, Mapping):
        return median(value.values()) if value else None
    return value  # type: ignore[return-value] # a number, or None
