"""Orders equal those of Monarch's generator, wherever it accepts the parameters."""

from pathlib import Path

import pytest
from monarch.parallel.pipelining import scheduler

from fullbore.formats import format_action
from fullbore.schedules import build

pytestmark = pytest.mark.monarch

KINDS = ("F", "B", "W", "BW")  # as its texts have them
SIZES = [
    (num_ranks, stages_per_rank, microbatches)
    for num_ranks in range(1, 9)
    for stages_per_rank in range(1, 5)
    for microbatches in range(1, 26)
    if microbatches % max(1, microbatches // num_ranks) == 0
]


@pytest.fixture(autouse=True)
def _only_the_compute_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # It writes files where it stands; and what it prints fails if a program is shorter than P.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scheduler, "_format_pipeline_order", lambda order: "")
    monkeypatch.setattr(scheduler, "_add_send_recv", lambda actions, **options: actions)


def theirs(num_ranks: int, stages_per_rank: int, microbatches: int, *, dfs: bool) -> list[str]:
    """One line a rank."""
    rounds = max(1, microbatches // num_ranks)
    order = scheduler.get_dora_schedule(
        stages_per_rank,
        num_ranks,
        rounds,
        microbatches // rounds,
        True,  # zero_bubble
        stages_per_rank * microbatches,
        microbatches,
        dfs=dfs,
    )
    return [" ".join(map(str, order[rank])) for rank in range(num_ranks)]


def ours(name: str, num_ranks: int, stages_per_rank: int, microbatches: int) -> list[str]:
    schedule = build(
        name,
        num_ranks=num_ranks,
        num_microbatches=microbatches,
        stages_per_rank=stages_per_rank,
    )
    return [
        " ".join(format_action(action, dialect="monarch") for action in program)
        for program in schedule.programs
    ]


@pytest.mark.parametrize("name", ["dora", "dora_dfs"])
def test_orders_equal_monarchs(name: str):
    for size in SIZES:
        assert ours(name, *size) == theirs(*size, dfs=name == "dora_dfs"), f"P, V, M = {size}"


def test_how_much_is_compared():
    assert len(SIZES) == 556
