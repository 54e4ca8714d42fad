"""The dispatcher: urgent work first, within memory, waiting where that is worth it."""

from math import inf

from fullbore.ir import Placement
from fullbore.schedules.dispatch import NEVER
from fullbore.schedules.dispatcher import Dispatcher, Rules


def dispatched(
    placement: Placement, microbatches: int, capacity: float, due: list[float], rules: Rules
) -> tuple[float, list[str]]:
    """At unit cost, everything held until W; the makespan and a line a rank."""
    stages = placement.num_stages
    dispatcher = Dispatcher(
        placement,
        microbatches,
        times=[1.0] * (3 * stages) + [0.0] * (2 * stages),
        memory=[1.0] * (2 * stages) + [capacity] * placement.num_ranks,
    )
    length = dispatcher(due, rules)
    programs = dispatcher.programs() if length < NEVER else []
    return length, [" ".join(map(str, program)) for program in programs]


def test_urgent_work_goes_first_and_weights_fill_gaps():
    due = [0.0, 1.0, 3.0, 2.0]
    assert dispatched(Placement.linear(2), 3, inf, due, Rules(period=3.0)) == (
        10.0,
        ["0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2"],
    )


def test_memory_makes_forwards_wait_for_weights():
    due = [0.0, 1.0, 3.0, 2.0]
    length, lines = dispatched(Placement.linear(2), 3, 1, due, Rules(period=3.0))
    assert lines == ["0F0 0I0 0W0 0F1 0I1 0W1 0F2 0I2 0W2", "1F0 1I0 1W0 1F1 1I1 1W1 1F2 1I2 1W2"]
    assert length == 15


def test_without_memory_for_one_microbatch_there_is_no_order():
    due = [0.0, 1.0, 3.0, 2.0]
    assert dispatched(Placement.linear(2), 3, 0.5, due, Rules(period=3.0))[0] == NEVER
    assert dispatched(Placement.vee(1), 1, 1, due, Rules(period=3.0))[0] == NEVER


def test_room_is_kept_for_later_stages():
    due = [0.0, 1.0, 3.0, 2.0]
    _, lines = dispatched(Placement.vee(1), 2, 2, due, Rules(period=0.1))
    assert lines == ["0F0 1F0 1I0 0I0 1W0 0W0 0F1 1F1 1I1 0I1 1W1 0W1"]


def test_forwards_do_not_start_long_before_they_are_due():
    due = [0.0, 1.0, 3.0, 2.0]
    early = dispatched(Placement.linear(2), 3, inf, due, Rules(period=6.0))
    late = dispatched(Placement.linear(2), 3, inf, due, Rules(period=6.0, slack=0.0))
    assert early[0] == 10
    assert late[1][0] == "0F0 0I0 0W0 0F1 0I1 0W1 0F2 0I2 0W2"


def test_a_patient_rank_waits_for_what_is_more_urgent():
    """At 2.4 rank 0 could begin F of microbatch 3; I of microbatch 0 comes at 2.8."""
    dispatcher = Dispatcher(
        Placement.linear(2),
        4,
        times=[0.8, 1, 1, 1, 1, 1, 0, 0, 0, 0],
        memory=[0] * 6,
    )
    for patience, first in [(0.0, "0F0 0F1 0F2 0F3 0I0"), (1.0, "0F0 0F1 0F2 0I0")]:
        dispatcher([0.0, 1.0, 3.0, 2.0], Rules(period=9.0, patience=patience))
        assert " ".join(map(str, dispatcher.programs()[0])).startswith(first)
