"""The runtime benchmark, at small sizes: both sides agree, and noise is told from signal."""

import json
import sys

import pytest
from bench import runtime
from bench.runtime import Results, Round
from bench.runtime_ranks import BOUND, Job, Time

pytestmark = [pytest.mark.torch, pytest.mark.gloo, pytest.mark.slow]


def a_round(*, ours: float, torchs: float, foreign: float = 0.0) -> Round:
    """Two ranks that compute all the time; ``foreign`` CPUs are busy with something else."""

    def time(seconds: float) -> Time:
        return Time(0.0, seconds, seconds, seconds, seconds * (2 + foreign))

    return Round({"torch": [time(torchs)] * 2, "shm": [time(ours)] * 2})


def a_job(rounds: int) -> Job:
    return Job("test", 4, ("1f1b",), ("shm",), rounds, 0.0, memory=False, rendezvous="")


def test_wall_time_is_from_the_first_start_to_the_last_end():
    one = Round({"torch": [Time(1.0, 3.0, 0, 0, 0), Time(1.5, 4.0, 0, 0, 0)]})
    assert one.wall("torch") == 3.0


def test_noisy_rounds_are_left_out_if_enough_quiet_ones_remain():
    quiet = [a_round(ours=1.0, torchs=2.0)] * 5
    noisy = [a_round(ours=3.0, torchs=1.0, foreign=0.5)] * 6
    assert noisy[0].foreign == pytest.approx(0.5)
    few = Results(a_job(10), rounds={"1f1b": quiet[:4] + noisy})
    enough = Results(a_job(11), rounds={"1f1b": quiet + noisy})
    assert enough.ratio("1f1b", "shm", "wall") == [0.5] * 5
    assert len(few.ratio("1f1b", "shm", "wall")) == 10


def test_the_bound_is_compared_within_a_round():
    bounds = [a_round(ours=0, torchs=1.0), a_round(ours=0, torchs=2.0)]
    steps = [a_round(ours=2.0, torchs=3.0), a_round(ours=4.0, torchs=8.0)]
    results = Results(a_job(2), rounds={BOUND: bounds, "1f1b": steps})
    assert results.of_bound("1f1b", "shm") == [0.5, 0.5]


def test_both_sides_run_and_agree(tmp_path, monkeypatch):
    out = tmp_path / "found.json"
    families = ["1f1b", "zbv_zero_bubble"]
    options = [
        "--config",
        "test",
        "--rounds",
        "1",
        "--patience",
        "0",
        "--json",
        str(out),
        "--families",
        *families,
    ]
    monkeypatch.setattr(sys, "argv", ["bench/runtime.py", *options])

    runtime.main()

    (found,) = json.loads(out.read_text("utf-8"))
    assert set(found["rounds"]) == {*families, BOUND}
    for family in families:
        assert found["difference"][family] == [{"shm": 0.0, "p2p": 0.0}] * 2
        assert all(by_side["torch"] > 0 for by_side in found["memory"][family])
