"""Costs from what was measured: profiles made by the simulator give back what it was told."""

import json
from pathlib import Path

import pytest

from fullbore.errors import FormatError, ParameterError
from fullbore.ir import KINDS, Group, Kind, Schedule
from fullbore.passes import lower
from fullbore.schedules import build
from fullbore.sim import TableCosts, Timeline, simulate
from fullbore.sim.profile import Profile, Sample, spent
from fullbore.sim.profile_files import load_profile, load_torch_traces, save_profile

COSTS = TableCosts(
    F=[1.0, 1.2, 1.1, 1.4],
    I=[1.0, 0.9, 1.1, 1.3],
    W=[0.7, 0.8, 0.9, 1.0],
    B=[1.6, 1.7, 1.8, 1.9],
    send=0.125,
    latency={(0, 1): 0.25, (1, 0): 0.5},
    message_bytes=[0, 64, 32, 16],
)


def samples(
    timeline: Timeline, costs: TableCosts, schedule: Schedule, taking: float = 0.0
) -> list[list[Sample]]:
    """What a perfect clock would have measured of a simulated step. ``taking`` is the part of an
    action's time that passes before its message is taken in."""
    last = schedule.num_stages - 1
    send, found = costs.table(schedule.placement).send, []
    sizes = {transfer.action: transfer.size for transfer in timeline.transfers}
    for slots in timeline.ranks:
        clock, rank = 0.0, []
        for slot in (piece for whole in slots for piece in whole.pieces):
            action, ready, end = slot.action, slot.start, slot.end
            if action.kind in (Kind.SEND_F, Kind.SEND_B):
                end = ready + send[action.stage]
                rank.append(Sample(action, ready, ready, end, int(sizes[action])))
            elif KINDS[action.kind].group is Group.COMPUTE:
                starts = (0, Kind.F), (last, Kind.B), (last, Kind.I)
                takes = action.kind is not Kind.W and (action.stage, action.kind) not in starts
                rank.append(Sample(action, clock, ready + taking * takes, end))
            clock = (
                max(clock, end)
                if KINDS[action.kind].group is not Group.COMMUNICATION or end > ready
                else clock
            )
        found.append(rank)
    return found


def profile(name: str, steps: int = 2, taking: float = 0.0) -> Profile:
    schedule = lower(build(name, num_ranks=2, num_microbatches=6))
    step = samples(simulate(schedule, COSTS), COSTS, schedule, taking)
    return Profile(schedule, (step,) * steps)


def forwards(measured: Profile) -> list[float]:
    return list(measured.costs().table(measured.schedule.placement).F)


@pytest.mark.parametrize("name", ["interleaved_1f1b", "interleaved_zero_bubble", "looped_bfs"])
def test_costs_come_back_and_predict_the_step(name: str):
    measured = profile(name)
    found = measured.costs()
    table, wanted = (
        found.table(measured.schedule.placement),
        COSTS.table(measured.schedule.placement),
    )
    kinds = ("F", "B") if name != "interleaved_zero_bubble" else ("F", "I", "W")
    for kind in kinds:
        assert getattr(table, kind) == pytest.approx(getattr(wanted, kind))
    assert table.message_bytes == pytest.approx(wanted.message_bytes)
    assert table.send == pytest.approx([0.125] * 4)
    assert found.latency == pytest.approx(COSTS.latency)
    assert simulate(measured.schedule, found).makespan == pytest.approx(measured.step_times()[0])


@pytest.mark.parametrize("name", ["interleaved_1f1b", "interleaved_zero_bubble", "looped_bfs"])
def test_taking_in_a_message_is_part_of_what_it_is_for(name: str):
    measured = profile(name, taking=0.0625)
    costs = measured.costs()
    assert pytest.approx(COSTS.F) == costs.F
    assert costs.latency == pytest.approx(COSTS.latency)
    found = simulate(measured.schedule, costs)
    assert found.makespan == pytest.approx(measured.step_times()[0])


def test_turning_to_the_next_action_is_part_of_the_one_before():
    good = profile("interleaved_1f1b")
    slow = [[s._replace(after=0.25) for s in rank] for rank in good.steps[0]]
    found = Profile(good.schedule, (slow,))
    assert forwards(found) == pytest.approx([time + 0.25 for time in forwards(good)])
    assert found.step_times() == good.step_times()[:1]


def test_a_rank_that_begins_early_only_to_wait_makes_no_step_longer():
    good = profile("interleaved_1f1b")
    first, *others = good.steps[0][1]
    early = [good.steps[0][0], [first._replace(start=first.start - 7), *others]]
    found = Profile(good.schedule, (early,))
    assert found.step_times() == good.step_times()[:1]
    assert spent(early) == spent(good.steps[0])
    assert found.timeline() == good.timeline()


def test_a_kind_that_did_not_run_is_told_by_the_others():
    full = profile("interleaved_1f1b").costs()
    assert full.I == full.W == pytest.approx([time / 2 for time in COSTS.B])  # type: ignore[union-attr]
    split = profile("interleaved_zero_bubble").costs()
    assert split.B is None


def test_medians_leave_out_the_first_step_and_one_that_was_disturbed():
    good = profile("interleaved_1f1b")
    slow = [
        [s._replace(start=9 * s.start, ready=9 * s.ready, end=9 * s.end) for s in rank]
        for rank in good.steps[0]
    ]
    steps = (slow, good.steps[0], slow, good.steps[0], good.steps[0])
    assert forwards(Profile(good.schedule, steps)) == pytest.approx(forwards(good))
    assert forwards(Profile(good.schedule, (slow,))) != pytest.approx(forwards(good))


def test_a_timeline_of_what_was_measured():
    measured = profile("interleaved_1f1b")
    wanted = simulate(measured.schedule, COSTS)
    found = measured.timeline()
    assert found.makespan == pytest.approx(wanted.makespan)
    assert len(found.transfers) == len(wanted.transfers)
    assert all(transfer.end >= transfer.start for transfer in found.transfers)


def test_where_the_time_went():
    measured = profile("interleaved_1f1b")
    timeline = simulate(measured.schedule, COSTS)
    for rank, found in enumerate(spent(measured.steps[0])):
        assert found.compute == pytest.approx(timeline.busy[rank])
        assert sum(found) == pytest.approx(measured.step_times()[0])
        assert found.overhead == pytest.approx(0, abs=1e-9)
        assert found.sending == pytest.approx(
            0.125 * sum(t.edge[0] == rank for t in timeline.transfers)
        )


def test_a_profile_is_of_all_ranks():
    good = profile("interleaved_1f1b")
    with pytest.raises(ParameterError, match="at least one step"):
        Profile(good.schedule, ())
    with pytest.raises(ParameterError, match="every rank's samples"):
        Profile(good.schedule, (good.steps[0][:1],))


def test_a_file_holds_all_of_it(tmp_path: Path):
    measured = profile("interleaved_zero_bubble")
    first, *others = measured.steps[0][0]
    rank = [first._replace(after=0.5), *others]
    measured = Profile(measured.schedule, ((rank, measured.steps[0][1]),))
    save_profile(measured, tmp_path / "profile.json")
    found = load_profile(tmp_path / "profile.json")
    assert found.steps[0][0][0].after == 0.5
    assert found.schedule == measured.schedule
    assert forwards(found) == pytest.approx(forwards(measured))
    assert [len(rank) for rank in found.steps[0]] == [len(rank) for rank in measured.steps[0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fullbore_profile": 7}, "1, the version of this format"),
        ({"schedule": {}}, "a key is missing"),
        ({"steps": 3}, "a list of steps"),
        ({"steps": [3]}, "a list of samples for each rank"),
        ({"steps": []}, "at least one step"),
        ({"steps": [[[["0F0", 1, 2]], []]]}, "[action, start, ready, end]"),
        ({"steps": [[[["0Q0", 1, 2, 3]], []]]}, "0Q0"),
    ],
)
def test_bad_files(tmp_path: Path, change: dict, message: str):
    path = tmp_path / "profile.json"
    save_profile(profile("interleaved_1f1b"), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(FormatError) as caught:
        load_profile(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def torch_trace(path: Path, names: list[str]) -> None:
    events = [
        {"ph": "X", "name": name, "ts": 10.0 * i, "dur": 8.0, "cat": "user_annotation"}
        for i, name in enumerate(names)
    ]
    noise = [{"ph": "X", "name": "aten::mm", "ts": 1.0, "dur": 1.0}, {"ph": "M", "name": "0F0"}]
    path.write_text(json.dumps({"traceEvents": noise + events}))


def test_traces_of_torch_are_read(tmp_path: Path):
    schedule = lower(build("1f1b", num_ranks=2, num_microbatches=1))
    torch_trace(tmp_path / "0.json", ["PP:0F0", "PP:0SEND_F0", "PP:0RECV_B0", "PP:0B0"] * 2)
    torch_trace(tmp_path / "1.json", ["1RECV_F0", "1F0", "1B0", "1SEND_B0"] * 2)
    found = load_torch_traces([tmp_path / "0.json", tmp_path / "1.json"], schedule)
    assert [len(rank) for step in found.steps for rank in step] == [4, 4, 4, 4]
    assert forwards(found) == pytest.approx([8e-6, 8e-6])


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (["x"], ["x"], "no range is called like an action"),
        (["0F0", "0F0"], ["1F0"], "different numbers of steps"),
    ],
)
def test_traces_that_tell_nothing(tmp_path: Path, first: list, second: list, message: str):
    schedule = build("1f1b", num_ranks=2, num_microbatches=1)
    torch_trace(tmp_path / "0.json", first)
    torch_trace(tmp_path / "1.json", second)
    with pytest.raises(FormatError, match=message):
        load_torch_traces([tmp_path / "0.json", tmp_path / "1.json"], schedule)
    with pytest.raises(ParameterError, match="one trace a rank"):
        load_torch_traces([tmp_path / "0.json"], schedule)
