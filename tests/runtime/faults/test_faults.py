"""Whatever goes wrong on one rank, every other one says so in time, and no process is left."""

from __future__ import annotations

from functools import partial

import pytest
from tests.runtime.faults import scenes
from tests.runtime.faults.harness import TIMEOUT, Kind, Seen, Setting, play
from tests.runtime.faults.scenes import Fault, with_fault

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

SOON = 5.0
"""Seconds within which a failure that makes itself known must be noticed, on a busy machine."""


@pytest.fixture(params=["shm", "p2p"])
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


def others(seen: list[Seen], rank: int) -> list[Seen]:
    return [one for other, one in enumerate(seen) if other != rank]


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Fault("raise", 1), "ValueError: boom (rank 1, stage 1, action 1F3)"),
        (Fault("raise", 0, "B", 1), "ValueError: boom (rank 0, stage 0, action 0B1)"),
        (Fault("raise", 2, "loss", 2), "ValueError: boom (rank 2, stage 2, action 2F2)"),
        (Fault("interrupt", 2), "KeyboardInterrupt (rank 2, stage 2, action 2F3)"),
        (Fault("shape", 1), "mat1 and mat2 shapes cannot be multiplied (2x7 and 8x8)"),
    ],
    ids=["forward", "backward", "loss", "interrupt", "shape"],
)
def test_an_exception_reaches_every_rank_and_the_next_step_is_good(
    kind: Kind, fault: Fault, cause: str
) -> None:
    seen = play(partial(with_fault, 3, fault), Setting(kind, 3))
    assert all(one.texts is not None and one.texts[-1] == "fine" for one in seen)
    for rank, one in enumerate(seen):
        assert cause in one.text
        assert one.seconds < SOON
        if rank != fault.rank:
            assert one.text.startswith("PeerFailed") == (f"rank {fault.rank} failed" in one.text)


@pytest.mark.parametrize("size", [2, 4])
def test_a_killed_rank_is_named_by_all_others(kind: Kind, size: int) -> None:
    seen = play(partial(with_fault, size, Fault("kill", 1)), Setting(kind, size))
    assert seen[1].texts is None
    for one in others(seen, 1):
        assert "rank 1 failed: its process is gone" in one.text
        assert one.seconds < SOON
        assert one.texts is not None
        assert one.texts[-1].startswith(("ExecutionError: this pipeline cannot", "PeerFailed"))


@pytest.mark.parametrize("size", [2, 4])
def test_a_stopped_rank_is_named_by_all_others(kind: Kind, size: int) -> None:
    seen = play(partial(with_fault, size, Fault("stop", 1)), Setting(kind, size))
    assert seen[1].texts is None
    for one in others(seen, 1):
        assert one.text.startswith("TransportTimeout")
        assert "for rank 1, which is at 1F3, and its process is stopped" in one.text
        assert TIMEOUT - 0.5 < one.seconds < TIMEOUT + SOON


def test_a_rank_that_computes_for_too_long_is_named(kind: Kind) -> None:
    seen = play(partial(with_fault, 4, Fault("sleep", 2)), Setting(kind, 4))
    assert all(one.text.startswith("TransportTimeout") for one in seen)
    # Ranks that give up at the same moment may find each other between two calls.
    assert any("for rank 2, which is at 2F3 (computing for" in one.text for one in seen)


def test_a_rank_that_skips_a_step_is_named(kind: Kind) -> None:
    seen = play(partial(scenes.skip_a_step, 3, 1), Setting(kind, 3))
    for one in others(seen, 1):
        assert "rank 1, which is between two calls of step() or eval() (for" in one.text


def test_a_rank_that_makes_no_pipeline_is_named(kind: Kind) -> None:
    seen = play(partial(scenes.no_pipeline, 3, 1), Setting(kind, 3))
    for one in others(seen, 1):
        assert "for rank 1" in one.text or "for rank(s) 1 to make a pipeline" in one.text
        assert one.seconds < TIMEOUT + SOON


def test_a_death_beside_a_busy_rank_reaches_the_rest(kind: Kind) -> None:
    seen = play(partial(scenes.busy_neighbours, 4), Setting(kind, 4, timeout=30.0))
    for one in seen[:2]:
        assert "rank 3 failed: its process is gone" in one.text
        assert one.seconds < 3.0


def test_a_failure_does_not_end_the_step_before(kind: Kind) -> None:
    first, middle, last = play(partial(scenes.hasty_next_step, 3), Setting(kind, 3, timeout=30.0))
    for one in (first, middle, last):
        assert one.texts is not None
        before, failed, after = one.texts
        assert before == after == "fine"
        assert "4 microbatches need" in failed
    assert last.text.startswith("ParameterError")
    assert first.text.startswith("PeerFailed")


def test_one_of_two_pipelines_in_a_world_dies_and_the_other_goes_on() -> None:
    setting = Setting("p2p", 4, groups=((0, 1), (2, 3)))
    # Both pipelines have a rank 1; the one of the second pipeline is spared.
    seen = play(partial(scenes.one_of_two_worlds, 3), setting)
    assert seen[3].texts is None
    assert "rank 1 failed: its process is gone" in seen[2].text
    assert [one.texts for one in seen[:2]] == [["fine"] * 3] * 2


def test_the_death_of_the_stores_host_is_named() -> None:
    setting = Setting("p2p", 4, hosted=True, timeout=30.0)
    seen = play(partial(scenes.busy_beside_host, 4), setting)
    assert seen[0].texts is None
    assert any("the store of the process group is lost" in one.text for one in seen[1:])
    for one in seen[1:]:
        assert "rank 0 failed: its process is gone" in one.text or "rank 0's" in one.text
        assert one.seconds < 10.0


def test_a_host_that_says_goodbye_disturbs_nobody() -> None:
    seen = play(partial(scenes.host_leaves, 3), Setting("p2p", 3, hosted=True, timeout=30.0))
    assert [one.texts for one in seen] == [["fine"]] * 3
