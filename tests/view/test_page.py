"""The interactive page, as a file."""

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from typing import Any

import pytest

from fullbore.errors import ParameterError
from fullbore.ir import Placement, Schedule
from fullbore.passes import lower
from fullbore.schedules import build
from fullbore.sim import Causes, TableCosts, UniformCosts
from fullbore.view import Panel, render_page, simulated

COSTS = UniformCosts(F=1, I=1, W=1, latency=0.25, activation_bytes=2**30, unit="ms")
HOSTILE = "</script><script>alert(1)</script><b title='\"'>&amp;"


def small(name: str = "1f1b", **options) -> Panel:
    return simulated(build(name, num_ranks=4, num_microbatches=8), **options)


def data_of(page: str) -> Any:
    (encoded,) = re.findall(r'<script id="data" type="text/plain">([\w+/=]*)</script>', page)
    return json.loads(zlib.decompress(base64.b64decode(encoded)))


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.title = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_data(self, data):
        if self.open[-1:] == ["title"]:
            self.title += data

    def handle_endtag(self, tag):
        self.open.pop()


def test_it_needs_nothing_from_elsewhere():
    page = render_page([small()])
    for tag, attributes in Elements(page).found:
        assert tag not in {"iframe", "object", "embed", "img", "base"}
        assert not attributes.get("src")
        assert attributes.get("href") in {None, "data:,"}
    assert "default-src 'none'" in page
    assert "http:" not in page
    assert "https:" not in page
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|import)\b *\(", page)


def test_what_a_user_supplies_is_escaped():
    panels = [small(title=HOSTILE), small(title="計画 {{style}}")]
    page = render_page(panels)
    assert "alert(1)</script>" not in page
    elements = Elements(page)
    assert elements.title == f"{HOSTILE} | 計画 {{{{style}}}}"
    assert [tag for tag, _ in elements.found] == [
        tag for tag, _ in Elements(render_page([small(), small()])).found
    ]
    assert [panel["title"] for panel in data_of(page)["panels"]] == [HOSTILE, "計画 {{style}}"]
    assert (
        data_of(render_page([small(title="\x1b\u202e")]))["panels"][0]["title"] == r"'\x1b\u202e'"
    )


def test_buttons_and_regions_have_names():
    page = render_page([small()])
    for tag, attributes in Elements(page).found:
        if tag in {"section", "div"} and attributes.get("role") == "toolbar":
            assert attributes.get("aria-label")
    assert '<html lang="en"' in page
    assert 'aria-live="polite"' in page


def test_events_say_what_they_wait_for():
    panel = small("zbv", costs=COSTS)
    (found,) = data_of(render_page([panel]))["panels"]
    causes = Causes(panel.schedule, panel.timeline)
    assert [tuple(needs) for needs in found["needs"]] == [e.needs for e in causes.events]
    assert found["start"] == [event.start for event in causes.events]
    path = [causes.events[number].action for number in found["critical"]]
    assert tuple(path) == causes.critical_path()
    for number, held in enumerate(found["held"]):
        assert held == (-1 if causes.held_by(number) is None else causes.held_by(number))
    first = found["firstMessage"]
    assert len(found["to"]) == len(found["start"]) - first == len(panel.timeline.transfers)


def test_memory_starts_with_the_panel():
    costs = UniformCosts(F=1, I=1, W=1, activation_bytes=8, static_bytes=100)
    panel = small(costs=costs)
    (found,) = data_of(render_page([panel]))["panels"]
    assert found["memory"][1]["time"][0] == 0
    assert found["memory"][1]["held"][0] == found["memory"][1]["held"][-1] == 100
    assert found["memoryUnit"] == "B"


def test_blocks_name_their_parts():
    panel = small("dualpipev", costs=UniformCosts(F=1, I=1, W=1, overlap=2))
    (found,) = data_of(render_page([panel]))["panels"]
    assert len(found["parts"]) == sum(bool(a.parts) for _, _, a in panel.schedule.actions())


def test_a_measured_timeline_may_start_at_any_time():
    panel = small(costs=COSTS)
    later = panel.timeline
    moved = tuple(
        tuple(slot._replace(start=slot.start + 100, end=slot.end + 100) for slot in slots)
        for slots in later.ranks
    )
    transfers = tuple(t._replace(start=t.start + 100, end=t.end + 100) for t in later.transfers)
    measured = panel._replace(timeline=type(later)(moved, transfers), memory=())
    one, two = data_of(render_page([panel, measured]))["panels"]
    assert one["start"] == two["start"]
    assert one["length"] == two["length"]


@pytest.mark.slow
def test_twenty_thousand_actions_take_less_than_five_megabytes():
    schedule = build(
        "interleaved_zero_bubble", num_ranks=16, num_microbatches=105, stages_per_rank=4
    )
    assert schedule.num_actions > 20_000
    costs = TableCosts(
        F=[1 + s / 97 for s in range(64)],
        I=[1 + s / 89 for s in range(64)],
        W=[1 + s / 83 for s in range(64)],
        latency=1 / 7,
        activation_bytes=2**30,
    )
    panel = simulated(schedule, costs)
    assert len(render_page([panel, panel])) < 5_000_000


@pytest.mark.parametrize(("dark", "theme"), [(None, ""), (True, "dark"), (False, "light")])
def test_the_ground_can_be_chosen(dark: bool | None, theme: str):
    assert f'data-theme="{theme}"' in render_page([small()], dark=dark)


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(((), ()), Placement.linear(2), 1),
        build("forward_only", num_ranks=3, num_microbatches=1),
        lower(build("dualpipev", num_ranks=2, num_microbatches=3), shard=True, batch=True),
    ],
    ids=["empty", "forward only", "lowered"],
)
def test_anything_that_runs_has_a_page(schedule: Schedule):
    (found,) = data_of(render_page([simulated(schedule)]))["panels"]
    assert found["ranks"] == schedule.num_ranks


def test_more_than_two_panels_are_refused():
    with pytest.raises(ParameterError, match="1 to 2 panels, got 3"):
        render_page([small()] * 3)
