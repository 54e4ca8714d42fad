"""Cases A03, A17 and A18: what schedules cost."""

import pytest

from fullbore.ir import Kind
from fullbore.passes import lower
from fullbore.schedules import FAMILIES, build
from fullbore.sim import UNIT_COSTS, TableCosts, simulate, unit_timeline


@pytest.mark.parametrize(
    ("name", "makespan"),
    [
        ("interleaved_1f1b", 57),
        ("looped_bfs", 57),
        ("interleaved_zero_bubble", 51),
        ("zbv_zero_bubble", 51),
        ("dualpipev", 51),
    ],
)
def test_a17_makespan_of_two_stages_a_rank(name: str, makespan: int):
    schedule = build(name, num_ranks=4, num_microbatches=8, stages_per_rank=2)
    assert unit_timeline(schedule).makespan == makespan


@pytest.mark.parametrize("num_ranks", range(1, 9))
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_a18_bubble_of_one_stage_a_rank(name: str, num_ranks: int):
    bubble = (num_ranks - 1) * (UNIT_COSTS[Kind.F] + UNIT_COSTS[Kind.B])
    for num_microbatches in range(1, 17):
        schedule = build(name, num_ranks=num_ranks, num_microbatches=num_microbatches)
        assert unit_timeline(schedule).bubble == bubble


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "forward_only"])
def test_a03_lowered_schedules_can_be_simulated(name: str):
    compute = build(name, num_ranks=4, num_microbatches=8)
    lowered = lower(compute, shard=True)
    kinds = {leaf.kind for _, _, action in lowered.actions() for leaf in action.leaves}
    assert {Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE_GRAD, Kind.SEND_F} <= kinds
    costs = TableCosts(F=1, I=1, W=1, latency=0.25, bandwidth=8, message_bytes=2)
    assert simulate(lowered, costs).makespan == simulate(compute, costs).makespan
    slower = TableCosts(F=1, I=1, W=1, unshard=0.5, reduce_grad=0.5)
    assert simulate(lowered, slower).makespan > simulate(compute, slower).makespan
