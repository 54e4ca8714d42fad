"""Earliest-start times, worked out by hand."""

import tracemalloc

import pytest

from fullbore.errors import InvalidSchedule, ParameterError
from fullbore.formats import loads
from fullbore.ir import Action, Form, Kind, Placement, Schedule
from fullbore.sim import Timeline, unit_timeline


def from_csv(text: str, **known) -> Schedule:
    return loads(text, format="csv", **known)


def times(timeline: Timeline) -> list[str]:
    return [
        " ".join(f"{slot.action}@{slot.start}-{slot.end}" for slot in rank)
        for rank in timeline.ranks
    ]


def test_an_action_starts_when_its_inputs_are_there_and_its_rank_is_free():
    timeline = unit_timeline(from_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"))
    assert times(timeline) == [
        "0F0@0-1 0F1@1-2 0B0@4-6 0B1@7-9",
        "1F0@1-2 1B0@2-4 1F1@4-5 1B1@5-7",
    ]


def test_a_split_backward_lets_the_weight_gradient_wait():
    timeline = unit_timeline(from_csv("0F0,0I0,0W0\n1F0,1I0,1W0\n"))
    assert times(timeline) == ["0F0@0-1 0I0@3-4 0W0@4-5", "1F0@1-2 1I0@2-3 1W0@3-4"]


def test_costs_can_be_given():
    schedule = from_csv("0F0,0B0\n1F0,1B0\n")
    timeline = unit_timeline(schedule, costs={Kind.F: 2, Kind.B: 0.5})
    assert times(timeline) == ["0F0@0-2 0B0@4.5-5.0", "1F0@2-4 1B0@4-4.5"]


@pytest.mark.parametrize("kind", [Kind.SEND_F, Kind.OVERLAP_F_B], ids=str)
def test_what_cannot_have_a_cost_is_refused(kind: Kind):
    with pytest.raises(ParameterError, match=kind.name):
        unit_timeline(from_csv("0F0,0B0\n"), costs={kind: 1})


@pytest.mark.parametrize("cost", [-1, float("nan"), float("inf")])
def test_a_cost_that_is_no_time_is_refused(cost: float):
    with pytest.raises(ParameterError, match=f"F must be a number of 0 or more, got {cost}"):
        unit_timeline(from_csv("0F0,0B0\n"), costs={Kind.F: cost})


def test_an_overlap_hands_on_each_part_when_that_part_ends():
    # Rank 1 gets 1F1's input after 0F1, although the overlap goes on for 0B0's two units.
    timeline = unit_timeline(from_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n"))
    overlap = timeline.ranks[0][1]
    assert (overlap.start, overlap.end) == (1, 6)
    assert [(str(part.action), part.start, part.end) for part in overlap.parts] == [
        ("0F1", 1, 2),
        ("0B0", 4, 6),
    ]
    assert times(timeline)[1] == "1F0@1-2 1B0@2-4 1F1@4-5 1B1@5-7"
    assert timeline.busy == (6, 6)


def test_transfers_take_no_time():
    lowered = (
        "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RESHARD\n"
    )
    assert times(unit_timeline(from_csv(lowered))) == [
        "0F0@0-1 0SEND_F0@1-1 0RECV_B0@4-4 0B0@4-6 0REDUCE_GRAD@6-6",
        "1UNSHARD@0-0 1RECV_F0@1-1 1F0@1-2 1B0@2-4 1SEND_B0@4-4 1RESHARD@4-4",
    ]


def test_a_receive_keeps_only_the_computation_waiting_that_uses_it():
    early = "0F0,0SEND_F0,0RECV_B0,0F1,0SEND_F1,0B0,0RECV_B1,0B1\n"
    other = "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"
    timeline = unit_timeline(from_csv(early + other))
    by_action = {str(slot.action): slot for slot in timeline.ranks[0]}
    assert by_action["0RECV_B0"].end == 4
    assert by_action["0F1"].start == 1


def test_a_message_of_an_overlap_leaves_when_its_part_is_done():
    lowered = (
        "0F0,0SEND_F0,0RECV_B0,(0F1;0B0)OVERLAP_F_B,0SEND_F1,0RECV_B1,0B1\n"
        "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"
    )
    assert unit_timeline(from_csv(lowered)).ranks[0][4].start == 2


def test_batched_pairs_wait_for_each_other_without_blocking():
    rank_0 = "0F0,0SEND_F0,0F1,(0SEND_F1;0RECV_B0)SEND_F_RECV_B,0B0,0RECV_B1,0B1\n"
    rank_1 = "1RECV_F0,1F0,1B0,(1SEND_B0;1RECV_F1)SEND_B_RECV_F,1F1,1B1,1SEND_B1\n"
    timeline = unit_timeline(from_csv(rank_0 + rank_1))
    assert times(timeline)[0].startswith("0F0@0-1 0SEND_F0@1-1 0F1@1-2")
    pair = timeline.ranks[0][3]
    assert [(str(part.action), part.end) for part in pair.parts] == [
        ("0SEND_F1", 2),
        ("0RECV_B0", 4),
    ]
    assert timeline.makespan == 9


def test_sharding_can_be_given_a_cost():
    schedule = from_csv("0F0,0B0,0REDUCE_GRAD\n")
    assert unit_timeline(schedule).makespan == 3
    assert unit_timeline(schedule, costs={Kind.F: 1, Kind.B: 2, Kind.REDUCE_GRAD: 5}).makespan == 8


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", id="cycle over two ranks"),
        pytest.param("0B0,0F0\n", id="backward before forward"),
        pytest.param("(0B0;0F0)OVERLAP_F_B\n", id="overlap written the wrong way round"),
        pytest.param("0F0,0B0\n1RECV_F0,1F0,1B0\n", id="receive without send"),
    ],
)
def test_an_order_that_cannot_run_is_refused(text: str):
    with pytest.raises(InvalidSchedule) as caught:
        unit_timeline(from_csv(text))
    assert caught.value.findings


@pytest.mark.parametrize(
    "action",
    [
        Action(0, Kind.F, 7),
        Action(1, Kind.F, 0),
        Action(-1, Kind.F, 0),
        Action(0, Kind.F),
        Action(0, Kind.REDUCE_GRAD, 0),
        Action(-1, Kind.OVERLAP_F_B),
    ],
    ids=str,
)
def test_an_action_out_of_range_is_refused(action: Action):
    with pytest.raises(InvalidSchedule):
        unit_timeline(Schedule(((action,),), Placement.linear(1), 2))


def test_an_incomplete_schedule_has_times():
    assert times(unit_timeline(from_csv("0F0,0F1,0B1\n"))) == ["0F0@0-1 0F1@1-2 0B1@2-4"]


def test_empty_programs_take_no_time():
    timeline = unit_timeline(Schedule(((), ()), Placement.linear(2), 1, Form.COMPUTE))
    assert timeline.ranks == ((), ())
    assert (timeline.makespan, timeline.span, timeline.busy) == (0, 0, (0, 0))
    assert (timeline.makespan_bubble_rate, timeline.span_bubble_rate) == (0, 0)


def test_memory_depends_on_the_actions_and_not_on_the_number_of_microbatches():
    schedule = from_csv("0F0,0F999999,0B0,0B999999\n")
    tracemalloc.start()
    timeline = unit_timeline(schedule)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert timeline.makespan == 6
    assert peak < 100_000
