"""Traces that Perfetto opens."""

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from fullbore.errors import ParameterError
from fullbore.ir import Placement, Schedule
from fullbore.passes import lower
from fullbore.schedules import FAMILIES, build
from fullbore.sim import TableCosts, Timeline, UniformCosts
from fullbore.view import Panel, render_trace, simulated

COSTS = UniformCosts(F=4, I=4, W=2, latency=9, bandwidth=8, message_bytes=4, activation_bytes=64)


def events_of(panel: Panel) -> Any:
    return json.loads(render_trace(panel))["traceEvents"]


def slices_of(events: list[dict]) -> dict[tuple[int, int], list[dict]]:
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


def names_of(events: list[dict], what: str) -> dict:
    return {
        (event["pid"], event.get("tid")): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == what
    }


def test_every_rank_is_a_process_with_tracks():
    events = events_of(simulated(build("1f1b", num_ranks=3, num_microbatches=2)))
    processes = names_of(events, "process_name")
    assert [processes[rank, None] for rank in range(3)] == ["rank 0", "rank 1", "rank 2"]
    threads = names_of(events, "thread_name")
    assert [name for (rank, _), name in sorted(threads.items()) if rank == 1] == [
        "compute",
        "link to rank 0",
        "link to rank 2",
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_slices_of_a_track_nest_or_follow_each_other(family: str):
    schedule = lower(build(family, num_ranks=4, num_microbatches=6), shard=True)
    for costs in (COSTS, TableCosts(F=1, I=1, W=1, unshard=1, reduce_grad=2, overlap=1, latency=3)):
        for track in slices_of(events_of(simulated(schedule, costs))).values():
            track.sort(key=lambda event: (event["ts"], -event["dur"]))
            open_until = [float("inf")]
            for event in track:
                while event["ts"] >= open_until[-1]:
                    open_until.pop()
                assert event["ts"] + event["dur"] <= open_until[-1]
                open_until.append(event["ts"] + event["dur"])


def test_messages_that_overtake_the_latency_get_tracks_of_their_own():
    events = events_of(simulated(build("1f1b", num_ranks=2, num_microbatches=8), COSTS))
    names = names_of(events, "thread_name").values()
    assert {"link to rank 1", "link to rank 1 (2)"} <= set(names)


def test_arrows_lead_from_the_message_to_the_work_that_uses_it():
    schedule = build("zbv", num_ranks=4, num_microbatches=6)
    panel = simulated(schedule, COSTS)
    events = events_of(panel)
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert len(starts) == len(panel.timeline.transfers) == sum(e["ph"] == "f" for e in events)
    tracks = slices_of(events)
    for number, start in starts.items():
        (message,) = (
            event
            for event in tracks[start["pid"], start["tid"]]
            if event["ts"] == start["ts"] and event["cat"] == "communication"
        )
        end = ends[number]
        (used,) = (e for e in tracks[end["pid"], end["tid"]] if e["ts"] == end["ts"])
        assert end["bp"] == "e"
        assert end["pid"] == message["args"]["to rank"]
        assert used["args"]["microbatch"] == message["args"]["microbatch"]
        step = 1 if message["name"].find("SEND_F") > 0 else -1
        assert used["args"]["stage"] == message["args"]["stage"] + step


def test_overlap_parts_lie_within_their_overlap():
    events = events_of(simulated(build("dualpipev", num_ranks=2, num_microbatches=6)))
    outer = [event for event in events if event.get("cat") == "overlap"]
    assert outer
    for overlap in outer:
        parts = [
            event
            for event in slices_of(events)[overlap["pid"], 0]
            if event["name"] in overlap["args"]["parts"]
        ]
        assert len(parts) == 2
        assert min(part["ts"] for part in parts) == overlap["ts"]
        assert max(part["ts"] + part["dur"] for part in parts) == overlap["ts"] + overlap["dur"]


def test_memory_is_a_counter_a_rank():
    panel = simulated(build("gpipe", num_ranks=2, num_microbatches=4), COSTS)
    counters = [event for event in events_of(panel) if event["ph"] == "C"]
    for rank in range(2):
        held = [event["args"]["bytes"] for event in counters if event["pid"] == rank]
        assert max(held) == max(level.bytes for level in panel.memory[rank])
        times = [event["ts"] for event in counters if event["pid"] == rank]
        assert all(before < after for before, after in pairwise(times))


@pytest.mark.parametrize(("unit", "scale"), [("us", 1), ("ms", 1e3), ("s", 1e6), ("ticks", 1e3)])
def test_times_are_microseconds(unit: str, scale: float):
    costs = UniformCosts(F=3, I=1, W=1, unit=unit)
    events = events_of(simulated(build("1f1b", num_ranks=1, num_microbatches=1), costs))
    (forward,) = (event for event in events if event["name"] == "0F0")
    assert (forward["ts"], forward["dur"]) == (0, 3 * scale)


def test_titles_are_data():
    hostile = '"}]}</script>\u202e\x1b計画'
    panel = simulated(build("1f1b", num_ranks=1, num_microbatches=1), title=hostile)
    assert json.loads(render_trace(panel))["otherData"]["title"] == ascii(hostile)


def test_an_empty_schedule_has_a_trace():
    assert events_of(simulated(Schedule(((), ()), Placement.linear(2), 1)))


def test_a_timeline_of_another_schedule_is_refused():
    panel = simulated(build("1f1b", num_ranks=2, num_microbatches=1))
    with pytest.raises(ParameterError, match="has 0 ranks, its schedule 2"):
        render_trace(panel._replace(timeline=Timeline(())))
    with pytest.raises(ParameterError, match=r"memory .* has 1 ranks, its schedule 2"):
        render_trace(panel._replace(memory=panel.memory[:1]))
