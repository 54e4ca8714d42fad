"""Cases A01, A12, A13 and A14: which parameters are legal, and what the orders hold."""

import pytest

from fullbore.ir import Action, Kind, Schedule, executable_order
from fullbore.schedules import build


def assert_whole(schedule: Schedule) -> None:
    """Each rank runs exactly the work of its stages, and all ranks together can run."""
    for rank, program in enumerate(schedule.programs):
        done = sorted(leaf for action in program for leaf in action.leaves)
        split = {(a.stage, a.microbatch) for a in done if a.kind is Kind.I}
        wanted = [
            Action(stage, kind, m)
            for stage in schedule.placement.stages_of(rank)
            for m in range(schedule.num_microbatches)
            for kind in ((Kind.F, Kind.I, Kind.W) if (stage, m) in split else (Kind.F, Kind.B))
        ]
        assert done == sorted(wanted)
    assert not executable_order(schedule).blocked


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("microbatches", [2, 4, 8])
def test_a01_every_rank_of_1f1b_runs_microbatches_0_to_m(num_ranks: int, microbatches: int):
    schedule = build("1f1b", num_ranks=num_ranks, num_microbatches=microbatches)
    for rank, program in enumerate(schedule.programs):
        for kind in (Kind.F, Kind.B):
            of_kind = [action for action in program if action.kind is kind]
            assert of_kind == [Action(rank, kind, m) for m in range(microbatches)]
        assert len(program) == 2 * microbatches
    last = [action.kind for action in schedule.programs[-1]]
    assert last == [Kind.F, Kind.B] * microbatches
    assert_whole(schedule)


@pytest.mark.parametrize(
    ("name", "microbatches"), [("1f1b", 1), ("1f1b", 2), ("1f1b", 3), ("gpipe", 1)]
)
def test_a12_fewer_microbatches_than_ranks(name: str, microbatches: int):
    assert_whole(build(name, num_ranks=4, num_microbatches=microbatches))


@pytest.mark.parametrize("name", ["interleaved_1f1b", "interleaved_zero_bubble"])
@pytest.mark.parametrize("stages_per_rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("num_ranks", "microbatches"),
    [(2, 5), (2, 7), (2, 9), (2, 17), (3, 7), (3, 16), (3, 17), (4, 9), (4, 17)],
)
def test_a13_microbatches_that_do_not_fill_their_rounds(
    name: str, stages_per_rank: int, num_ranks: int, microbatches: int
):
    schedule = build(
        name,
        num_ranks=num_ranks,
        num_microbatches=microbatches,
        stages_per_rank=stages_per_rank,
    )
    assert_whole(schedule)


@pytest.mark.parametrize("microbatches", [1, 7])
def test_a14_dualpipev_of_fewer_microbatches_than_stages(microbatches: int):
    schedule = build("dualpipev", num_ranks=4, num_microbatches=microbatches)
    assert schedule.placement.shape == "vee"
    assert_whole(schedule)
