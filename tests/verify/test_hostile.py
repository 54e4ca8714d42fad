"""Large, strange and broken input: an answer in bounded time, space and length."""

from tests.verify.support import lowered, rules, schedule

from fullbore.ir import Action, Form, Kind, Placement, Schedule, fuse
from fullbore.verify import verify
from fullbore.verify.machine import run


def test_a_huge_microbatch_costs_nothing():
    huge = schedule(f"0F0 0F{10**12} 0B0", microbatches=10**12 + 1)
    found = verify(huge)
    assert [each.rule for each in found] == ["missing-forward", "missing-backward"]
    assert "999,999,999,999 microbatches (1, 2, 3, ...)" in found[0].message


def test_a_huge_microbatch_in_lowered_form():
    m = 10**12
    programs = f"0F{m} 0SEND_F{m}", f"1RECV_F{m} 1F{m}"
    huge = lowered(*programs, ranks=(0, 1), microbatches=m + 1, forward_only=True)
    assert rules(huge) == ["missing-forward"] * 2


def test_thousands_of_faults_make_a_short_report():
    strangers = tuple(Action(stage, Kind.F, 0) for stage in range(1, 5001))
    found = verify(Schedule((strangers,), Placement((0,)), 4096))
    assert [each.message for each in found if each.step is None] == [
        "there is no backward at all",
        "stage 0 has no F for 4,096 microbatches (0, 1, 2, ...)",
        "4,992 more like these",
    ]
    assert len(found) == 8 + 3


def test_long_actions_are_shown_shortly():
    parts = tuple(Action(0, Kind.F, m) for m in range(1000))
    [found] = (
        each
        for each in verify(Schedule(((fuse(Kind.OVERLAP_F_B, *parts),),), Placement((0,)), 1000))
        if each.rule == "fused-parts"
    )
    assert str(found).startswith(
        "error[fused-parts] rank 0, step 0, (1000 parts)OVERLAP_F_B: is made of F, F, F, F, ... ("
    )


def test_deep_actions_are_shown_shortly():
    deep = Action(0, Kind.F, 0)
    for _ in range(5000):
        deep = fuse(Kind.OVERLAP_F_B, deep)
    found = verify(Schedule(((deep,),), Placement((0,)), 1))
    assert found[0].action == "(1 parts)OVERLAP_F_B"


def test_many_ranks_behind_one_cycle():
    """Rank 0 has its two backwards the wrong way round, and everyone waits for it."""
    count = 40
    programs = [(Action(0, Kind.B, 0), Action(0, Kind.F, 0))]
    programs += [(Action(s, Kind.F, 0), Action(s, Kind.B, 0)) for s in range(1, count)]
    [found] = verify(Schedule(tuple(programs), Placement.linear(count), 1))
    assert found.message.startswith(
        "rank 0 at 0B0 waits for 0F0 (later on the same rank). Behind them, rank 1 at 1F0 waits for"
    )
    assert found.message.endswith("; and 23 more")


class Counting(set[int]):
    """A set that counts how often it is asked."""

    questions = 0

    def __contains__(self, item: object) -> bool:
        self.questions += 1
        return super().__contains__(item)


def test_the_machine_asks_about_each_need_at_most_twice():
    """Where sweeping over all ranks would ask for each one's head again and again."""
    ranks, rounds = 50, 40
    tracks = [
        # Fact n needs fact n - 1, and rank n % ranks gives it.
        [op for n in range(rank + 1, ranks * rounds, ranks) for op in (~(n - 1), n)]
        for rank in range(ranks)
    ]
    held = Counting([0])
    assert run(tracks, held) == list(map(len, tracks))
    assert ranks * rounds < held.questions <= 2 * ranks * rounds


def test_many_stages():
    count = 2000
    programs = tuple((Action(s, Kind.F, 0),) for s in range(count))
    wide = Schedule(programs, Placement.linear(count), 1, Form.COMPUTE, forward_only=True)
    assert verify(wide) == ()
