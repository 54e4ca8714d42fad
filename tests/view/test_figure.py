"""SVG and PNG."""

import struct
import sys
import xml.etree.ElementTree as ET
from collections import Counter

import pytest

from fullbore.errors import MissingExtra, ParameterError
from fullbore.ir import Kind, Placement, Schedule
from fullbore.passes import lower
from fullbore.schedules import FAMILIES, build
from fullbore.sim import TableCosts, Timeline, UniformCosts
from fullbore.view import Panel, render_figure, simulated
from fullbore.view.palette import PALETTE
from fullbore.view.panel import tiles_of
from fullbore.view.sheet import LIGHT, labels_of, layout

SVG = "{http://www.w3.org/2000/svg}"
COSTS = UniformCosts(F=1, I=1, W=1, latency=0.25, activation_bytes=2**30, unit="ms")


def small(name: str = "1f1b", **options) -> Panel:
    return simulated(build(name, num_ranks=4, num_microbatches=8), **options)


def drawn(panels: list[Panel], **options) -> ET.Element:
    return ET.fromstring(render_figure(panels, "svg", **options))


def texts(svg: ET.Element) -> list[str]:
    return ["".join(element.itertext()) for element in svg.iter(f"{SVG}text")]


def fills(svg: ET.Element) -> Counter[str]:
    styles = [element.get("style") or "" for element in svg.iter(f"{SVG}path")]
    found = [style.split("fill: ")[1][:7] for style in styles if "fill: #" in style]
    return Counter(found)


def test_every_block_is_drawn_in_its_colour_and_labelled():
    svg = drawn([small()])
    forward, backward = (PALETTE[kind][0].web_back for kind in (Kind.F, Kind.B))
    # One more of each is in the legend.
    assert fills(svg)[forward] == fills(svg)[backward] == 4 * 8 + 1
    labels = Counter(texts(svg))
    for m in range(8):
        assert labels[f"F{m}"] == labels[f"B{m}"] == 4
    assert labels["idle"] == 1
    assert labels["27% idle"] == 4
    assert "makespan 33, bubble 27.3% of makespan, 48 messages" in labels


def test_idle_time_has_lanes_of_its_own_colour():
    svg = drawn([small()])
    assert fills(svg)[LIGHT.idle] == 4 + 1


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "forward_only"])
@pytest.mark.parametrize(("num_ranks", "num_microbatches"), [(4, 8), (16, 64)])
def test_labels_fit_their_blocks(name: str, num_ranks: int, num_microbatches: int):
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    schedule = build(name, num_ranks=num_ranks, num_microbatches=num_microbatches)
    panel = simulated(schedule)
    rows = tiles_of(panel)
    sheet = layout([panel], [rows], legend=["x"], colors=LIGHT, width=None, memory=False)
    length = panel.bounds[1]
    pixels = (sheet.width - sheet.left - sheet.right) / length
    font = FontProperties(family="DejaVu Sans", size=sheet.font)
    written = 0
    for row in rows:
        labels = labels_of(row, panel, sheet=sheet, pixels=pixels)
        for tile, text in zip(row, labels, strict=True):
            points, high, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
            assert points * 96 / 72 <= (tile.end - tile.start) * pixels - 1, text
            assert high * 96 / 72 <= (tile.bottom - tile.top) * sheet.lane_height
            written += bool(text)
    if num_ranks == 4:
        assert written == sum(map(len, rows))


def test_the_ruler_has_the_unit():
    panel = small(costs=COSTS)
    svg = drawn([panel])
    assert "time (ms)" in texts(svg)
    assert any(text.startswith(f"makespan {panel.timeline.makespan:g} ms") for text in texts(svg))


def test_messages_are_arrows_if_there_are_few():
    panel = small(costs=COSTS)
    lines = lambda svg: sum(  # noqa: E731
        "stroke-width: 0.6" in (path.get("style") or "") for path in svg.iter(f"{SVG}path")
    )
    assert lines(drawn([panel])) == len(panel.timeline.transfers) == 48
    assert lines(drawn([panel], messages=False)) == 0
    many = simulated(build("1f1b", num_ranks=4, num_microbatches=40), COSTS)
    assert lines(drawn([many])) == 0
    assert lines(drawn([many], messages=True)) == 240


def test_memory_has_a_lane_and_its_peak():
    without, with_memory = (drawn([small(costs=COSTS)], memory=m) for m in (False, True))
    assert fills(with_memory)[LIGHT.memory] == 4 + 1
    assert fills(without)[LIGHT.memory] == 0
    assert {"4 GiB", "3 GiB", "2 GiB", "1 GiB"} <= set(texts(with_memory))
    counted = drawn([small()], memory=True)
    assert {"4 activations", "1 activations"} <= set(texts(counted))


def test_panels_lie_below_each_other_on_one_scale():
    svg = drawn([small("zbv", title="one"), small("dualpipev", title="two")])
    assert {"one", "two"} <= set(texts(svg))
    height = lambda svg: float(svg.get("height").removesuffix("pt"))  # noqa: E731
    assert height(svg) > 1.8 * height(drawn([small("zbv")]))


def test_parts_that_run_at_once_share_the_lane():
    costs = UniformCosts(F=1, I=1, W=1, overlap=3)
    halves = [tile for row in tiles_of(small("dualpipev", costs=costs)) for tile in row]
    upper = [tile for tile in halves if (tile.top, tile.bottom) == (0, 0.5)]
    lower_half = [tile for tile in halves if (tile.top, tile.bottom) == (0.5, 1)]
    assert len(upper) == len(lower_half) > 0
    for above, below in zip(upper, lower_half, strict=True):
        assert (above.start, above.end) == (below.start, below.end)


def test_measured_overlaps_need_not_tell_the_times_of_their_parts():
    panel = small("dualpipev", costs=UniformCosts(F=1, I=1, W=1, overlap=3))
    ranks = tuple(tuple(s._replace(parts=()) for s in slots) for slots in panel.timeline.ranks)
    measured = panel._replace(timeline=Timeline(ranks, panel.timeline.transfers))
    assert tiles_of(measured) == tiles_of(panel)


def test_sharding_is_drawn_beside_the_computation():
    schedule = lower(build("1f1b", num_ranks=2, num_microbatches=4), shard=True)
    panel = simulated(schedule, TableCosts(F=1, I=1, W=1, unshard=1, reduce_grad=1))
    strips = [tile for row in tiles_of(panel) for tile in row if tile.top > 1]
    assert {tile.action.kind for tile in strips} == {Kind.UNSHARD, Kind.REDUCE_GRAD}
    assert "R reduce gradients" in texts(drawn([panel], memory=True))


def test_a_dark_ground():
    light, dark = (drawn([small("zbv")], dark=dark) for dark in (False, True))
    assert fills(light)["#ffffff"]
    assert not fills(dark)["#ffffff"]
    first, second = (shade.web_back for shade in PALETTE[Kind.F])
    assert fills(light)[first] == fills(dark)[second]


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_same_picture_is_the_same_file(ending: str):
    assert render_figure([small()], ending) == render_figure([small()], ending)


@pytest.mark.parametrize("width", [None, 640, 1200])
def test_a_png_has_two_dots_a_pixel(width: int | None):
    png = render_figure([small()], "png", width=width)
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">I", png[16:20])[0] == 2 * (width or 960)


@pytest.mark.parametrize("title", ["$x^2$ & <b>'\"</script>", "計画", "--> 'DejaVu Sans'"])
@pytest.mark.parametrize("ending", ["svg", "png"])
def test_titles_are_shown_as_they_are(title: str, ending: str):
    content = render_figure([small(title=title)], ending)
    if ending == "svg":
        assert title in texts(ET.fromstring(content))


@pytest.mark.parametrize("title", ["\x1b[31mred", "two\nlines", "\u202eflipped", "a\0b"])
def test_titles_cannot_steer_a_reader(title: str):
    assert ascii(title) in texts(drawn([small(title=title)]))


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(((), ()), Placement.linear(2), 1),
        build("1f1b", num_ranks=1, num_microbatches=1),
        build("forward_only", num_ranks=3, num_microbatches=2),
        lower(build("dualpipev", num_ranks=2, num_microbatches=3), shard=True, batch=True),
    ],
    ids=["empty", "1x1", "forward only", "lowered"],
)
def test_anything_that_runs_is_drawn(schedule: Schedule):
    assert texts(drawn([simulated(schedule)], memory=True))


def test_no_setting_of_matplotlib_is_used_or_changed():
    import matplotlib

    before = render_figure([small()])
    with matplotlib.rc_context({"font.size": 20, "axes.grid": True, "text.color": "red"}):
        settings = dict(matplotlib.rcParams)
        assert render_figure([small()]) == before
        assert dict(matplotlib.rcParams) == settings


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fullbore\[pictures\]'"):
        render_figure([small()])


@pytest.mark.parametrize(
    ("panels", "options", "message"),
    [
        ([], {}, "1 to 4 panels, got 0"),
        ([small()] * 5, {}, "1 to 4 panels, got 5"),
        ([small()], {"format": "pdf"}, "svg or png, got 'pdf'"),
        ([small()], {"width": 100}, "320 pixels or more, got 100"),
        ([small()._replace(memory=())], {"memory": True}, "no panel says what memory"),
        ([small(), small(costs=COSTS)], {}, r"these are in \['', 'ms'\]"),
    ],
)
def test_what_cannot_be_drawn_is_refused(panels: list[Panel], options: dict, message: str):
    with pytest.raises(ParameterError, match=message):
        render_figure(panels, **options)
