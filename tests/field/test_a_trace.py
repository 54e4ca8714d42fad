"""Case A20: a trace of a schedule with overlaps and a split backward."""

import json

import pytest

from fullbore.ir import Kind
from fullbore.passes import lower
from fullbore.schedules import build
from fullbore.sim import UniformCosts
from fullbore.view import render_trace, simulated


@pytest.mark.parametrize("overlap", [None, 2.5])
@pytest.mark.parametrize("lowered", [False, True])
def test_a20_backward_halves_and_overlap_parts_are_computation(lowered: bool, overlap: float):
    schedule = build("dualpipev", num_ranks=4, num_microbatches=10)
    if lowered:
        schedule = lower(schedule)
    costs = UniformCosts(F=1, I=1, W=1, overlap=overlap, latency=0.1)
    events = json.loads(render_trace(simulated(schedule, costs)))["traceEvents"]
    tracks = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    filed = set()
    for event in events:
        if event["ph"] == "X" and event["cat"] == "compute":
            assert tracks[event["pid"], event["tid"]] == "compute"
            for text in event["args"].get("parts", [event["name"]]):
                filed.add((event["pid"], text))
    expected = {
        (rank, str(leaf))
        for rank, _, action in schedule.actions()
        for leaf in action.leaves
        if leaf.kind in (Kind.F, Kind.B, Kind.I, Kind.W)
    }
    assert {text[1] for _, text in expected} >= {"F", "B", "I", "W"}
    assert filed == expected
