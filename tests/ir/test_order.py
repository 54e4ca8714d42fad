import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fullbore.formats import loads
from fullbore.ir import Blocked, Dependencies, Schedule, executable_order

ONE_F_ONE_B = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
LOWERED = """\
0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD
1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD
"""
PAIRS = """\
0F0,0SEND_F0,0F1,(0SEND_F1;0RECV_B0)SEND_F_RECV_B,0B0,0RECV_B1,0B1
1RECV_F0,1F0,1B0,(1SEND_B0;1RECV_F1)SEND_B_RECV_F,1F1,1B1,1SEND_B1
"""


def schedule(text: str) -> Schedule:
    return loads(text, format="csv")


def named(found: Schedule) -> list[str]:
    return [str(found.programs[rank][step]) for rank, step in executable_order(found).steps]


def test_every_rank_takes_a_step_where_it_can():
    assert " ".join(named(schedule(ONE_F_ONE_B))) == "0F0 1F0 0F1 1B0 0B0 1F1 1B1 0B1"


@pytest.mark.parametrize("text", [ONE_F_ONE_B, LOWERED, PAIRS])
def test_a_right_schedule_runs_to_its_end(text: str):
    found = schedule(text)
    order = executable_order(found)
    assert not order.blocked
    every = [(rank, step) for rank, step, _ in found.actions()]
    assert sorted(order.steps) == every


def test_a_pair_takes_its_place_once_it_has_sent():
    names = named(schedule(PAIRS))
    ours, theirs = "(0SEND_F1;0RECV_B0)SEND_F_RECV_B", "(1SEND_B0;1RECV_F1)SEND_B_RECV_F"
    assert names.index(ours) < names.index("0B0")
    assert names.index(ours) < names.index("1F1")
    assert names.index(theirs) < names.index("0B0")
    assert names.index("1B0") < names.index(theirs)


def test_a_pair_that_never_receives_is_blocked():
    found = schedule(PAIRS.replace("(1SEND_B0;1RECV_F1)SEND_B_RECV_F", "1RECV_F1"))
    deps = Dependencies(found)
    blocked = executable_order(found, deps).blocked
    assert [(b.rank, b.step, deps.givers(b.missing)) for b in blocked] == [(0, 3, "1SEND_B0")]


@pytest.mark.parametrize(
    ("text", "stuck"),
    [
        (
            "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n",
            ["rank 0 at 0B0 waits for 1B0 or 1I0", "rank 1 at 1F1 waits for 0F1"],
        ),
        ("1F0,0F0,1B0,0B0\n", ["rank 0 at 1F0 waits for 0F0"]),
        ("0F0,1F0,0B0,1B0\n", ["rank 0 at 0B0 waits for 1B0 or 1I0"]),
        ("0F0,0W0,0I0\n", ["rank 0 at 0W0 waits for 0I0"]),
        ("0F0\n1RECV_F0,1F0\n", ["rank 1 at 1RECV_F0 waits for 0SEND_F0"]),
        (
            "0F0,1F0,(0F1;1B1)OVERLAP_F_B,0B1,1F1\n",
            ["rank 0 at (0F1;1B1)OVERLAP_F_B waits for 1F1"],
        ),
        ("0F0,0REDUCE_GRAD,0B0\n", ["rank 0 at 0REDUCE_GRAD waits for 0B0 or 0W0"]),
    ],
)
def test_who_waits_for_what(text: str, stuck: list[str]):
    found = schedule(text)
    deps = Dependencies(found)
    order = executable_order(found, deps)
    assert stuck == [
        f"rank {b.rank} at {b.action} waits for {deps.givers(b.missing)}" for b in order.blocked
    ]
    assert order == executable_order(found)
    done = {(rank, step) for rank, step in order.steps}
    assert all((b.rank, b.step) not in done for b in order.blocked)


def test_an_overlap_needs_nothing_that_it_gives():
    assert not executable_order(schedule("(0F0;0B0)OVERLAP_F_B\n")).blocked


def test_empty_programs_are_done():
    found = loads("# placement: 0 1\n# num_microbatches: 1\nrank 0:\nrank 1:\n", format="txt")
    assert executable_order(found) == ((), ())


@settings(max_examples=40)
@given(
    *(
        st.permutations(program.split(","))
        for program in ("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0", "1RECV_F0,1F0,1RECV_F1,1F1,1B0")
    )
)
def test_any_order_runs_as_far_as_it_can(first: list[str], second: list[str]):
    found = schedule(f"{','.join(first)}\n{','.join(second)},1SEND_B0\n")
    deps = Dependencies(found)
    order = executable_order(found, deps)
    holds: set[int] = set()
    heads = [0, 0]
    for rank, step in order.steps:
        assert step == heads[rank]
        heads[rank] += 1
        action = found.programs[rank][step]
        assert holds.issuperset(deps.needs(action))
        holds.update(deps.gives(action))
    stuck = []
    for rank, (head, program) in enumerate(zip(heads, found.programs, strict=True)):
        if head < len(program):
            missing = next(f for f in deps.needs(program[head]) if f not in holds)
            stuck.append(Blocked(rank, head, program[head], missing))
    assert order.blocked == tuple(stuck)


def test_memory_depends_on_the_actions_and_not_on_the_number_of_microbatches():
    found = schedule("0F0,0F999999,0B0,0B999999,0REDUCE_GRAD\n")
    tracemalloc.start()
    deps = Dependencies(found)
    order = executable_order(found, deps)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [(b.step, deps.givers(b.missing)) for b in order.blocked] == [(4, "0B1 or 0W1")]
    assert peak < 100_000
