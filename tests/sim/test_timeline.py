"""What follows from the times."""

from fullbore.formats import loads
from fullbore.sim import Slot, Timeline, unit_timeline


def test_makespan_and_span_differ_where_ranks_start_and_end_late():
    # Rank 0 works from 0 to 9, rank 1 from 1 to 7.
    timeline = unit_timeline(loads("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", format="csv"))
    assert timeline.makespan == 9
    assert timeline.span == 9
    assert [*timeline.busy] == [6, 6]
    assert [*timeline.idle] == [3, 3]
    assert timeline.bubble == 3
    assert timeline.makespan_bubble_rate == 3 / 9


def test_span_is_what_the_longest_rank_takes():
    forward = unit_timeline(loads("0F0,0F1\n1F0,1F1\n2F0,2F1\n", format="csv"))
    assert (forward.makespan, forward.span) == (4, 2)
    assert forward.makespan_bubble_rate == 0.5
    assert forward.span_bubble_rate == 0


def test_only_computation_counts_as_work():
    text = "0UNSHARD,0F0,0SEND_F0\n1UNSHARD,1RECV_F0,1F0\n"
    timeline = unit_timeline(loads(text, format="csv"))
    assert [[str(slot.action) for slot in work] for work in timeline.work()] == [["0F0"], ["1F0"]]
    assert [*timeline.busy] == [1, 1]
    assert timeline.span == 1


def test_a_timeline_starts_with_its_first_action():
    action = unit_timeline(loads("0F0\n", format="csv")).ranks[0][0].action
    assert Timeline(((Slot(action, 5, 7),),)).makespan == 2
