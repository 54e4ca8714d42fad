"""Costs by layer."""

import pytest

from fullbore.errors import ParameterError
from fullbore.ir import Placement
from fullbore.plan import Layer, LayerCosts, layer_costs, partition, transformer
from fullbore.sim import TableCosts

BLOCK = Layer(F=4, I=5, W=3, held=10, kept=6, static=2, message=1)
LAYERS = (Layer(F=1, I=0, W=1, static=9), *[BLOCK] * 10, Layer(F=6, I=6, W=6, held=8, message=1))


@pytest.mark.parametrize(
    "placement", [Placement.linear(4), Placement.loop(2, 3), Placement.vee(3), Placement((0, 1, 0))]
)
def test_every_placement_has_all_layers(placement: Placement):
    costs = LayerCosts(layers=LAYERS, latency=0.5, unit="ms")
    split, table = costs.split(placement), costs.table(placement)
    assert [n for stage in split.stages for n in stage] == list(range(len(LAYERS)))
    assert split == partition(LAYERS, placement)
    for name, own in [("F", "F"), ("I", "I"), ("W", "W"), ("activation_bytes", "held")]:
        assert sum(getattr(table, name)) == sum(getattr(layer, own) for layer in LAYERS)
    assert sum(table.static_bytes) == 29
    assert table.message_bytes[1:] == (1,) * (placement.num_stages - 1)
    assert table.link((0, 1)) == (0.5, 0)
    assert table.unit == "ms"


def test_a_chosen_split_holds():
    placement = Placement.linear(2)
    costs = LayerCosts(layers=LAYERS)
    even = costs.even(placement)
    assert costs.split(placement) != even
    chosen = LayerCosts(layers=LAYERS, chosen={placement: even})
    assert chosen.split(placement) == even
    assert chosen.table(placement).F == (21, 26)


def test_a_split_keeps_to_the_memory_where_it_can():
    placement = Placement.linear(2)
    heavy = [Layer(F=1, I=1, W=1, held=30, static=5), *[Layer(F=1, I=1, W=1, held=10)] * 9]
    free = LayerCosts(layers=tuple(heavy)).split(placement)
    tight = LayerCosts(layers=tuple(heavy), memory=135).split(placement)
    assert [len(stage) for stage in free.stages] == [5, 5]
    assert max(tight.bytes) <= 135 < max(free.bytes)
    hopeless = LayerCosts(layers=tuple(heavy), memory=1).split(placement)
    assert hopeless.stages == free.stages


def test_costs_of_a_pipeline_with_a_layer_a_stage():
    measured = TableCosts(
        F=[1, 2, 3],
        I=[1, 2, 4],
        W=1,
        latency={(0, 1): 5, (1, 0): 1, (1, 2): 3, (2, 1): 3},
        bandwidth=100,
        activation_bytes=[7, 8, 9],
        message_bytes=[0, 6, 6],
        unit="s",
    )
    costs = layer_costs(measured)
    assert costs.layers == (
        Layer(F=1, I=1, W=1, held=7, kept=7),
        Layer(F=2, I=2, W=1, held=8, kept=8, message=6),
        Layer(F=3, I=4, W=1, held=9, kept=9, message=6),
    )
    assert (costs.latency, costs.bandwidth, costs.unit) == (3, 100, "s")
    assert costs.table(Placement((0, 0, 1))).F == (1, 2, 3)


def test_a_number_for_all_is_no_list_of_layers():
    with pytest.raises(ParameterError, match="a list of numbers, one a layer"):
        layer_costs(TableCosts(F=1, I=1, W=1))
    with pytest.raises(ParameterError, match="one layer or more"):
        LayerCosts(layers=())


def test_a_transformer_by_formula():
    # FLOPs of the zero-bubble paper's table 1 for its 6.2B model, and bytes in units of s * b.
    h, a, s, b = 4096, 32, 1024, 2
    costs = transformer(layers=30, hidden=h, heads=a, sequence=s, vocabulary=50_000, rows=b)
    embedding, block, *_, head = costs.layers
    assert len(costs.layers) == 32
    operations = [s * b * h * (24 * h + more * s) / 1e12 for more in (4, 8, 0)]
    found = [block.F, block.I, block.W]
    assert found == pytest.approx(operations)
    assert (block.held, block.kept) == (s * b * (34 * h + 5 * a * s), 32 * s * b * h)
    assert head.F == head.W == pytest.approx(2 * s * b * h * 50_000 / 1e12)
    assert embedding.time == 0
    parameters = sum(layer.static for layer in costs.layers) / 16
    assert parameters == pytest.approx(30 * 12 * h * h + 2 * 50_000 * h, rel=0.01)
    assert len(transformer(layers=3, hidden=8, heads=2, sequence=4).layers) == 3
    with pytest.raises(ParameterError, match="must be a whole number from 1 to"):
        transformer(layers=3, hidden=8, heads=0, sequence=4)
