"""Links, sharding, blocks and recomputation; what waits for what; memory. Worked out by hand."""

from itertools import pairwise

import pytest

from fullbore.formats import loads
from fullbore.ir import Schedule
from fullbore.passes import lower
from fullbore.schedules import FAMILIES, build
from fullbore.sim import (
    Causes,
    Costs,
    Event,
    TableCosts,
    Timeline,
    UniformCosts,
    measure,
    memory_over_time,
    simulate,
)

UNIT = TableCosts(F=1, I=1, W=1)


def from_csv(text: str) -> Schedule:
    return loads(text, format="csv")


def times(timeline: Timeline) -> list[str]:
    return [
        " ".join(f"{slot.action}@{slot.start:g}-{slot.end:g}" for slot in rank)
        for rank in timeline.ranks
    ]


def path(schedule: Schedule, costs: Costs) -> str:
    return " ".join(map(str, Causes(schedule, simulate(schedule, costs)).critical_path()))


def test_latency_delays_and_occupies_nothing():
    found = simulate(
        from_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"), TableCosts(F=1, I=1, W=1, latency=3)
    )
    assert times(found) == [
        "0F0@0-1 0F1@1-2 0B0@10-12 0B1@13-15",
        "1F0@4-5 1B0@5-7 1F1@7-8 1B1@8-10",
    ]
    assert [(str(t.action), t.start, t.end) for t in found.transfers] == [
        ("0SEND_F0", 1, 4),
        ("0SEND_F1", 2, 5),
        ("1SEND_B0", 7, 10),
        ("1SEND_B1", 10, 13),
    ]


def test_bytes_occupy_a_link():
    costs = TableCosts(F=1, I=1, W=1, bandwidth=2, latency=1, message_bytes=[0, 8])
    found = simulate(from_csv("0F0,0F1\n1F0,1F1\n"), costs)
    # The second message leaves when the first is off the link, before it has arrived.
    assert [(t.start, t.end, t.size) for t in found.transfers] == [(1, 6, 8), (5, 10, 8)]
    assert times(found) == ["0F0@0-1 0F1@1-2", "1F0@6-7 1F1@10-11"]


def test_each_direction_is_a_link_of_its_own():
    costs = TableCosts(F=1, I=1, W=1, bandwidth={(0, 1): 1}, message_bytes=[0, 4])
    found = simulate(from_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"), costs)
    assert [(t.edge, t.start, t.end) for t in found.transfers] == [
        ((0, 1), 1, 5),
        ((0, 1), 5, 9),
        ((1, 0), 8, 8),
        ((1, 0), 12, 12),
    ]


def test_posting_a_message_keeps_the_rank():
    costs = TableCosts(F=1, I=1, W=1, send=[0.5, 0])
    found = simulate(from_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"), costs)
    assert times(found) == [
        "0F0@0-1 0F1@1.5-2.5 0B0@4.5-6.5 0B1@7.5-9.5",
        "1F0@1.5-2.5 1B0@2.5-4.5 1F1@4.5-5.5 1B1@5.5-7.5",
    ]


def test_a_lowered_schedule_takes_as_long_as_what_it_was_made_of():
    # Posting would differ: a lowered schedule posts an overlap's messages after the overlap.
    costs = TableCosts(F=1, I=2, W=0.5, latency=0.5, bandwidth=4, message_bytes=2)
    for name in FAMILIES:
        for num_ranks in (1, 2, 4):
            schedule = build(name, num_ranks=num_ranks, num_microbatches=6)
            compute, lowered = (simulate(s, costs) for s in (schedule, lower(schedule)))
            assert lowered.makespan == pytest.approx(compute.makespan)
            assert len(lowered.transfers) == len(compute.transfers)


def test_sharding_has_a_stream_of_its_own():
    costs = TableCosts(F=4, I=1, W=1, unshard=1, reshard=0, reduce_grad=2)
    schedule = from_csv(
        "0UNSHARD,0F0,1UNSHARD,1F0,1B0,1REDUCE_GRAD,1RESHARD,0B0,0RESHARD,0REDUCE_GRAD\n"
    )
    # Stage 1 is gathered while stage 0 computes, reduced while it computes backward.
    assert times(simulate(schedule, costs)) == [
        "0UNSHARD@0-1 0F0@1-5 1UNSHARD@1-2 1F0@5-9 1B0@9-11 1REDUCE_GRAD@11-13 1RESHARD@13-13 "
        "0B0@11-13 0RESHARD@13-13 0REDUCE_GRAD@13-15"
    ]


def test_an_overlap_as_one_block_needs_all_first_and_gives_all_last():
    schedule = from_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n")
    found = simulate(schedule, TableCosts(F=1, I=1, W=1, overlap=2.5))
    assert times(found) == [
        "0F0@0-1 (0F1;0B0)OVERLAP_F_B@4-6.5 0B1@9.5-11.5",
        "1F0@1-2 1B0@2-4 1F1@6.5-7.5 1B1@7.5-9.5",
    ]
    assert list(found.busy) == [5.5, 6]
    some = simulate(schedule, TableCosts(F=1, I=1, W=1, overlap={(0, 1): 2.5}))
    assert some.makespan == simulate(schedule, UNIT).makespan  # another pair's block


def test_recomputation_is_paid_by_the_backward():
    schedule = from_csv("0F0,0B0,0F1,0I1,0W1\n")
    found = simulate(schedule, TableCosts(F=3, I=1, W=1, recompute={0}))
    assert times(found) == ["0F0@0-3 0B0@3-8 0F1@8-11 0I1@11-15 0W1@15-16"]


def test_critical_path():
    schedule = from_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    assert path(schedule, UNIT) == "0F0 0SEND_F0 1F0 1B0 1F1 1B1 1SEND_B1 0B1"
    slow = TableCosts(F=[5, 1], I=1, W=1)
    assert path(schedule, slow) == "0F0 0F1 0SEND_F1 1F1 1B1 1SEND_B1 0B1"


def test_a_critical_path_over_a_crowded_link():
    costs = TableCosts(F=1, I=1, W=1, bandwidth=1, message_bytes=[0, 5])
    schedule = from_csv("0F0,0F1,0F2\n1F0,1F1,1F2\n")
    assert path(schedule, costs) == "0F0 0SEND_F0 0SEND_F1 0SEND_F2 1F2"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_critical_path_has_no_gap(name: str):
    schedule = build(name, num_ranks=4, num_microbatches=7)
    costs = TableCosts(F=1.1, I=0.9, W=0.7, latency=0.3, bandwidth=3, message_bytes=1)
    for form in (schedule, lower(schedule, shard=name != "forward_only")):
        timeline = simulate(form, costs)
        causes = Causes(form, timeline)
        number: int | None = max(range(len(causes.events)), key=lambda n: causes.events[n].end)
        chain: list[Event] = []
        while number is not None:
            chain.append(causes.events[number])
            number = causes.held_by(number)
        assert chain[-1].start == 0
        assert chain[0].end == timeline.makespan
        for later, earlier in pairwise(chain):
            is_link = earlier.action.kind.name.startswith("SEND") and later.rank == earlier.rank
            assert later.start == earlier.end or is_link


def test_metrics():
    schedule = from_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    costs = TableCosts(F=1, I=1, W=1, latency=3)
    found = measure(schedule, simulate(schedule, costs), costs)
    assert (found.makespan, found.span, found.busy) == (15, 15, (6, 6))
    assert found.makespan_bubble_rate == pytest.approx(9 / 15)
    # Rank 0 idles from 2 to 10 and from 12 to 13, rank 1 from 0 to 4 and after 10.
    assert [tuple(idle) for idle in found.idle] == [(8, 0, 1), (4, 0, 5)]
    # Rank 0 waits for messages under way at 7-10 and 12-13, rank 1 at 1-4.
    assert list(found.exposed) == [4, 3]
    assert (found.messages, found.message_bytes) == (4, 0)


def levels(schedule: Schedule, costs: Costs, rank: int = 0) -> str:
    found = memory_over_time(schedule, simulate(schedule, costs), costs)[rank]
    return " ".join(f"{level.bytes:g}@{level.time:g}" for level in found)


def test_activations_live_from_f_to_b_and_what_is_kept_to_w():
    schedule = from_csv("0F0,0F1,0B0,0I1,0W1\n")
    costs = TableCosts(F=1, I=1, W=1, activation_bytes=10, kept_bytes=4, static_bytes=100)
    assert levels(schedule, costs) == "110@0 120@1 110@4 104@5 100@6"


def test_a_stage_that_recomputes_holds_its_input():
    costs = TableCosts(F=1, I=1, W=1, activation_bytes=10, message_bytes=2, recompute={0})
    assert levels(from_csv("0F0,0F1,0B0,0B1\n"), costs) == "10@0 2@1 12@1 4@2 12@2 2@5 10@5 0@8"


def test_messages_take_memory_on_both_sides():
    schedule = from_csv("0F0,0B0\n1F0,1B0\n")
    costs = TableCosts(F=1, I=1, W=1, latency=2, message_bytes=[0, 3], activation_bytes=[10, 20])
    # Sent from 1 to 3; the gradient is here from 6 on, used at 8.
    assert levels(schedule, costs) == "10@0 13@1 10@3 13@6 3@10 0@10"
    # The message is here from 1, and is the stage's input from 3 on; the gradient leaves 6 to 8.
    assert levels(schedule, costs, rank=1) == "3@1 0@3 20@3 0@6 3@6 0@8"


def test_between_stages_of_a_rank_a_value_waits_for_its_user():
    schedule = from_csv("0F0,0F1,1F0,1F1,1B0,1B1,0B0,0B1\n")
    costs = TableCosts(F=1, I=1, W=1, message_bytes=[0, 3])
    # An output waits for stage 1, then two gradients for the end of what uses them.
    assert levels(schedule, costs) == "3@1 0@2 3@2 0@3 3@6 6@8 3@10 0@12"


@pytest.mark.parametrize("num_microbatches", [4, 8, 11])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_peaks_known_from_the_literature(num_ranks: int, num_microbatches: int):
    def peak(name: str, stages_per_rank: int | None = None) -> float:
        schedule = build(
            name,
            num_ranks=num_ranks,
            num_microbatches=num_microbatches,
            stages_per_rank=stages_per_rank,
        )
        costs = UniformCosts(F=1, I=1, W=1, activation_bytes=1)
        found = measure(schedule, simulate(schedule, costs), costs)
        return max(peak.bytes for peak in found.peak)

    assert peak("gpipe") == num_microbatches
    assert peak("1f1b") == min(num_ranks, num_microbatches)
    if num_microbatches % num_ranks == 0 and num_microbatches > num_ranks:
        assert peak("interleaved_1f1b", 2) == (2 * num_ranks + num_ranks - 1) / 2
    if num_microbatches >= 2 * num_ranks:
        assert peak("zbv") == num_ranks


@pytest.mark.parametrize("name", FAMILIES)
def test_memory_never_falls_below_what_is_always_there(name: str):
    schedule = build(name, num_ranks=2, num_microbatches=5)
    costs = TableCosts(F=1, I=1, W=1, message_bytes=3, activation_bytes=10, kept_bytes=4)
    found = memory_over_time(schedule, simulate(schedule, costs), costs)
    assert all(level.bytes >= 0 for rank in found for level in rank)
    if name != "forward_only":
        assert [rank[-1].bytes for rank in found] == [0, 0]
