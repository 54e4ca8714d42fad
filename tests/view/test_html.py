"""The grid in a notebook."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from fullbore.formats import loads
from fullbore.ir import Action, Kind, Placement, Schedule
from fullbore.schedules import build
from fullbore.view.grid import render_html


def rows_of(html: str) -> list[list[ET.Element]]:
    return [list(row) for row in ET.fromstring(html).iter("tr")]


def text_of(html: str) -> str:
    return " ".join(ET.fromstring(html).itertext())


def test_every_row_fills_the_makespan():
    schedule = build("1f1b", num_ranks=4, num_microbatches=8)
    rows = rows_of(render_html(schedule))
    assert len(rows) == 4
    for row in rows:
        _, *cells = row
        assert sum(int(cell.get("colspan", 1)) for cell in cells) == 33
    assert sum(cell.get("class") == "idle" for cell in rows[0]) == 9


def test_cells_say_what_they_are():
    rows = rows_of(render_html(build("zbv", num_ranks=2, num_microbatches=2)))
    first = rows[0][1]
    assert (first.text, first.get("title")) == ("0F0", "0F0, 0 to 1")
    assert first.get("style") == "background:#005faf;color:#ffffff"


def test_what_a_user_supplies_is_escaped():
    schedule = replace(build("1f1b", num_ranks=1, num_microbatches=1), name="<script>&")
    html = render_html(schedule)
    assert "<script>" not in html
    assert "&lt;script&gt;&amp;" in html


def test_a_lowered_schedule_is_listed():
    html = render_html(loads("0F0,0SEND_F0\n1RECV_F0,1F0\n", format="csv"))
    assert [[cell.text for cell in row] for row in rows_of(html)] == [
        ["step", "rank 0", "rank 1"],
        ["0", "0F0", "1RECV_F0"],
        ["1", "0SEND_F0", "1F0"],
    ]
    assert "makespan 2" in text_of(html)


def test_a_schedule_that_cannot_run_is_listed_without_times():
    html = render_html(loads("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", format="csv"))
    assert "cannot run" in text_of(html)
    wrong = [cell.text for row in rows_of(html) for cell in row if cell.get("class") == "wrong"]
    assert wrong == ["0B0"]


@pytest.mark.parametrize("name", ["gpipe", "dualpipev", "forward_only"])
def test_it_needs_nothing_from_elsewhere(name: str):
    html = render_html(build(name, num_ranks=2, num_microbatches=2))
    assert not {"script", "link", "img"} & {element.tag for element in ET.fromstring(html).iter()}
    assert "http" not in html


def test_an_empty_schedule_shows():
    assert "rank 1" in text_of(render_html(Schedule(((), ()), Placement.linear(2), 1)))


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(((Action(0, Kind.F, 0),) * 100_001,), Placement.linear(1), 1),
        build("1f1b", num_ranks=256, num_microbatches=1),  # few actions, much idle time
    ],
    ids=["long", "wide"],
)
def test_a_huge_schedule_is_only_named(schedule: Schedule):
    html = render_html(schedule)
    assert f"{schedule.num_actions} actions are too many" in html
    assert len(html) < 3000


def test_notebooks_show_the_grid():
    schedule = build("gpipe", num_ranks=2, num_microbatches=2)
    assert schedule._repr_html_() == render_html(schedule)
