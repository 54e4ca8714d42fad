"""DORA's orders at sizes that show what is special about them."""

from pathlib import Path
from typing import Any

import pytest

from fullbore.schedules import build

GOLDEN = {
    (2, 2, 4): [
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3I0 3F1 3I1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3 3W0 3W1",
    ],
    # M = P: half as many weight gradients wait.
    (2, 2, 2): [
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3I0 3F1 3B1 1B0 1B1 3W0",
    ],
    # A W that would wait, but comes right after its I because there is nothing else.
    (2, 1, 1): ["0F0 0B0", "1F0 1B0"],
}


def rows(name: str, num_ranks: int, stages_per_rank: int, microbatches: int) -> list[str]:
    schedule = build(
        name,
        num_ranks=num_ranks,
        num_microbatches=microbatches,
        stages_per_rank=stages_per_rank,
    )
    return [" ".join(map(str, program)) for program in schedule.programs]


@pytest.mark.parametrize(("size", "expected"), GOLDEN.items())
def test_dora(size: tuple[int, int, int], expected: list[str]):
    assert rows("dora", *size) == expected


def test_the_first_ranks_of_many_run_backwards_alone():
    """6B1 comes before 6F6, the first forward of the second stage that comes in turn."""
    first, second, *_ = rows("dora", 6, 2, 12)
    assert " 0F10 6B0 0F11 6B1 6B2 6F6 6B3 6F7 " in first
    assert " 1F10 7B2 1F11 7B3 7F6 7B4 7F7 " in second


@pytest.mark.parametrize("stages_per_rank", [1, 2, 3])
def test_dora_dfs_is_interleaved_1f1b(stages_per_rank: int):
    for num_ranks in range(1, 7):
        for microbatches in range(1, 18):
            size: tuple[Any, ...] = (num_ranks, stages_per_rank, microbatches)
            assert rows("dora-dfs", *size) == rows("interleaved_1f1b", *size)


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    build("dora", num_ranks=4, num_microbatches=8)
    assert not [*tmp_path.iterdir()]
