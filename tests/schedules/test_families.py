"""Every family, at every size: all of the work, in an order that can run."""

from collections import defaultdict
from pathlib import Path

import pytest

from fullbore.ir import Action, Form, Kind, Placement, Schedule, executable_order
from fullbore.schedules import FAMILIES, build

GOLDEN = Path(__file__).parents[1] / "golden"
RANKS = (1, 2, 3, 4, 8)
MICROBATCHES = range(1, 18)
SPLIT = {
    *("interleaved_zero_bubble", "zbv_zero_bubble", "zb_h1", "zb_h2", "gis", "v_half", "v_min"),
    *("zb", "zbv_greedy"),
}
SHAPES = [
    (name, num_ranks, stages_per_rank)
    for name, family in FAMILIES.items()
    for num_ranks in RANKS
    for stages_per_rank in (
        [family.default_stages_per_rank] if family.fixed_stages_per_rank else [1, 2, 3]
    )
]


def leaves(schedule: Schedule, rank: int) -> list[Action]:
    return [leaf for action in schedule.programs[rank] for leaf in action.leaves]


def problem(schedule: Schedule) -> str | None:
    """What is wrong with the work of a schedule, if anything is."""
    microbatches = range(schedule.num_microbatches)
    for rank in range(schedule.num_ranks):
        done = leaves(schedule, rank)
        cells = {(s, m) for s in schedule.placement.stages_of(rank) for m in microbatches}
        by_kind = defaultdict(set)
        for stage, kind, microbatch, _ in done:
            by_kind[kind].add((stage, microbatch))
        if sum(map(len, by_kind.values())) != len(done):
            return f"rank {rank} runs an action twice"
        if by_kind[Kind.F] != cells:
            return f"rank {rank} runs other forwards than its own"
        if by_kind[Kind.I] != by_kind[Kind.W] or by_kind[Kind.B] & by_kind[Kind.I]:
            return f"rank {rank} has an I without its W, or beside a B"
        if by_kind[Kind.B] | by_kind[Kind.I] != (set() if schedule.forward_only else cells):
            return f"rank {rank} runs other backwards than its own"
    blocked = executable_order(schedule).blocked
    return f"blocked: {blocked}" if blocked else None


def accumulation(schedule: Schedule, *kinds: Kind) -> list[list[int]]:
    """For each stage the microbatches in the order in which ``kinds`` run."""
    order: list[list[int]] = [[] for _ in range(schedule.num_stages)]
    for rank in range(schedule.num_ranks):
        for stage, kind, microbatch, _ in leaves(schedule, rank):
            if kind in kinds:
                order[stage].append(microbatch)
    return order


def most_live(schedule: Schedule, rank: int) -> int:
    """The most (stage, microbatch) pairs between F and their B or W at any time."""
    live = most = 0
    for action in leaves(schedule, rank):
        live += {Kind.F: 1, Kind.B: -1, Kind.W: -1}.get(action.kind, 0)
        most = max(most, live)
    return most


@pytest.mark.parametrize(("name", "num_ranks", "stages_per_rank"), SHAPES)
def test_all_work_is_there_and_can_run(name: str, num_ranks: int, stages_per_rank: int):
    for microbatches in MICROBATCHES:
        schedule = build(
            name,
            num_ranks=num_ranks,
            num_microbatches=microbatches,
            stages_per_rank=stages_per_rank,
        )
        assert (schedule.num_ranks, schedule.num_microbatches) == (num_ranks, microbatches)
        assert schedule.num_stages == num_ranks * stages_per_rank
        assert schedule.form is Form.COMPUTE
        assert schedule.forward_only == (name == "forward_only")
        assert problem(schedule) is None, f"M={microbatches}"


@pytest.mark.parametrize("name", ["interleaved_1f1b", "interleaved_zero_bubble"])
@pytest.mark.parametrize("size", [(5, 4, 23), (7, 2, 30), (12, 2, 31), (16, 2, 37)])
def test_uneven_rounds_of_large_pipelines_can_run(name: str, size: tuple[int, int, int]):
    num_ranks, stages_per_rank, microbatches = size
    schedule = build(
        name,
        num_ranks=num_ranks,
        num_microbatches=microbatches,
        stages_per_rank=stages_per_rank,
    )
    assert problem(schedule) is None


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"forward_only", "dora"}))
def test_gradients_accumulate_in_order(name: str):
    for num_ranks in (2, 3, 8):
        for microbatches in (1, 3, 7, 12, 17):
            schedule = build(name, num_ranks=num_ranks, num_microbatches=microbatches)
            ascending = list(range(microbatches))
            wanted = ascending[::-1] if name == "looped_bfs" else ascending
            for order in (Kind.B, Kind.W), (Kind.B, Kind.I):
                assert accumulation(schedule, *order) == [wanted] * schedule.num_stages


@pytest.mark.parametrize(
    ("name", "live"),
    [
        ("gpipe", [8, 8, 8, 8]),
        ("1f1b", [4, 3, 2, 1]),
        ("looped_bfs", [16, 16, 16, 16]),
        ("interleaved_1f1b", [11, 9, 7, 5]),
        ("interleaved_zero_bubble", [8, 8, 8, 8]),
        ("zbv_zero_bubble", [8, 8, 8, 8]),
        ("dualpipev", [9, 9, 9, 9]),
        ("zb_h1", [4, 4, 4, 4]),
        ("zb_h2", [7, 7, 7, 7]),
        ("gis", [8, 7, 6, 5]),
        ("zb", [4, 4, 4, 4]),
        ("zbv_greedy", [8, 8, 8, 8]),
        ("v_half", [6, 6, 6, 6]),
        ("v_min", [4, 4, 4, 4]),
        ("dora", [11, 11, 11, 11]),
        ("dora_dfs", [11, 9, 7, 5]),
    ],
)
def test_activations_in_flight(name: str, live: list[int]):
    schedule = build(name, num_ranks=4, num_microbatches=8)
    assert [most_live(schedule, rank) for rank in range(4)] == live


def kinds_of(name: str) -> set[str]:
    schedule = build(name, num_ranks=4, num_microbatches=12)
    return {action.kind.name for _, _, action in schedule.actions()}


def test_kinds_of_backward():
    full = {"gpipe", "1f1b", "looped_bfs", "interleaved_1f1b", "dora_dfs"}
    assert all(kinds_of(name) == {"F", "B"} for name in full)
    assert all(kinds_of(name) == {"F", "I", "W"} for name in SPLIT)
    assert kinds_of("dualpipev") == {"F", "B", "I", "W", "OVERLAP_F_B"}
    assert kinds_of("dora") == {"F", "B", "I", "W"}
    assert kinds_of("forward_only") == {"F"}


def test_dualpipev_is_the_listing_of_pytorch_pull_request_158978():
    schedule = build("dualpipev", num_ranks=4, num_microbatches=10)
    rows = [",".join(map(str, program)) for program in schedule.programs]
    assert rows == (GOLDEN / "dualpipev_p4_m10.csv").read_text("utf-8").splitlines()


def test_dualpipev_of_few_microbatches_splits_its_backwards():
    schedule = build("dualpipev", num_ranks=2, num_microbatches=2)
    assert [" ".join(map(str, program)) for program in schedule.programs] == [
        "0F0 0F1 3F0 3B0 3F1 3B1 0I0 0W0 0I1 0W1",
        "1F0 2F0 1F1 2F1 2B0 1B0 2I1 1I1 2W1 1W1",
    ]


@pytest.mark.parametrize("shape", [(0, 1, 2, 2, 1, 0), (1, 0, 2), (0, 0, 1, 2, 1), (0, 1, 0, 1)])
def test_forward_only_takes_any_placement(shape: tuple[int, ...]):
    placement = Placement(shape)
    schedule = build(
        "forward_only", num_ranks=placement.num_ranks, num_microbatches=5, placement=placement
    )
    assert schedule.placement == placement
    assert problem(schedule) is None


def test_forward_only_takes_a_loop_round_by_round():
    schedule = build("forward_only", num_ranks=2, num_microbatches=4, stages_per_rank=2)
    assert " ".join(map(str, schedule.programs[0])) == "0F0 0F1 2F0 2F1 0F2 0F3 2F2 2F3"
