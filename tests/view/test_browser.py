"""The interactive page in a browser."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser import Browser

from fullbore.schedules import build
from fullbore.sim import UniformCosts
from fullbore.view import Panel, save_picture, simulated

pytestmark = pytest.mark.browser

COSTS = UniformCosts(
    F=1, I=1, W=1, latency=0.25, activation_bytes=2**30, message_bytes=2**20, unit="ms"
)
HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
FRAME = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


Show = Callable[..., Browser]


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Show]:
    """Opens a page of panels; at the end, nothing may have gone wrong or been asked for."""
    path = tmp_path / "page.html"
    browser.errors.clear()
    browser.requested.clear()
    browser.prefer("light")

    def opened(*panels: Panel, **options: Any) -> Browser:
        save_picture(panels, path, **options)
        browser.open(path.as_uri(), ready="window.fullbore")
        browser.evaluate(FRAME)
        return browser

    yield opened
    assert browser.errors == []
    assert set(browser.requested) == {path.as_uri()}


def small(name: str = "1f1b", **options: Any) -> Panel:
    return simulated(build(name, num_ranks=4, num_microbatches=8), **{"costs": COSTS, **options})


def middle_of(browser: Browser, text: str, chart: int = 0) -> tuple[float, float]:
    """Where in the window the middle of an action's block is."""
    x, y = browser.evaluate(f"""(() => {{
        const chart = window.fullbore.charts[{chart}];
        const event = chart.timeline.twin({text!r});
        const box = chart.canvas.getBoundingClientRect();
        const time = (chart.timeline.start[event] + chart.timeline.end[event]) / 2;
        const y = chart.y(chart.timeline.rank[event]) + chart.laneHeight / 2;
        return [box.left + chart.x(time), box.top + y];
    }})()""")
    return x, y


def color_at(browser: Browser, x: float, y: float, chart: int = 0) -> str:
    """The colour of a pixel of a chart, at a point of the window."""
    channels = browser.evaluate(f"""(() => {{
        const {{ canvas, context, ratio }} = window.fullbore.charts[{chart}];
        const box = canvas.getBoundingClientRect();
        const [x, y] = [({x} - box.left) * ratio, ({y} - box.top) * ratio];
        return [...context.getImageData(x, y, 1, 1).data].slice(0, 3);
    }})()""")
    return "#" + "".join(f"{channel:02x}" for channel in channels)


def text_of(browser: Browser, selector: str) -> str:
    return str(browser.evaluate(f"document.querySelector({selector!r}).innerText"))


def window_of(browser: Browser) -> tuple[float, float]:
    browser.evaluate(FRAME)
    start, end = browser.evaluate("[window.fullbore.state.from, window.fullbore.state.to]")
    return start, end


def test_work_and_idle_time_have_their_colours(show: Show):
    browser = show(small())
    x, y = middle_of(browser, "0F0")
    assert color_at(browser, x, y - 15) == "#005faf"
    x, y = middle_of(browser, "1B2")
    assert color_at(browser, x, y - 15) == "#d75f00"
    x, y = middle_of(browser, "3B0")
    assert color_at(browser, middle_of(browser, "0F0")[0], y) == "#e4e4e4"


def test_the_reader_s_preference_decides_on_the_ground(show: Show):
    browser = show(small())
    assert browser.evaluate("window.fullbore.theme.dark") is False
    browser.prefer("dark")
    browser.evaluate(FRAME)
    x, y = middle_of(browser, "0F0")
    assert color_at(browser, x, y - 15) == "#5fafd7"
    browser = show(small(), dark=False)
    assert browser.evaluate("window.fullbore.theme.dark") is False


def test_hovering_tells_action_times_and_bytes(show: Show):
    browser = show(small())
    browser.mouse("Moved", *middle_of(browser, "1B2"))
    lines = text_of(browser, "#tip").splitlines()
    assert lines[0] == "1B2: full backward"
    assert lines[1].startswith("rank 1, ")
    assert lines[1].endswith(" ms (2 ms)")
    assert lines[2].startswith("rank holds 3")
    assert lines[2].endswith("GiB")
    browser.mouse("Moved", 700, 5)
    assert browser.evaluate("document.getElementById('tip').hidden")


def test_hovering_over_a_message_tells_its_bytes(show: Show):
    browser = show(small())
    x, y = browser.evaluate("""(() => {
        const chart = window.fullbore.charts[0];
        const box = chart.canvas.getBoundingClientRect();
        const [x0, y0, x1, y1] = chart.ends(chart.timeline.twin("0SEND_F3"));
        return [box.left + (x0 + x1) / 2, box.top + (y0 + y1) / 2];
    })()""")
    browser.mouse("Moved", x, y)
    assert text_of(browser, "#tip").splitlines()[::2] == [
        "0SEND_F3: send activations to the next stage",
        "1 MiB",
    ]


def test_a_click_tells_who_waits_for_whom(show: Show):
    browser = show(small())
    browser.click(*middle_of(browser, "1B2"))
    browser.evaluate(FRAME)
    buttons = "[...document.querySelectorAll('#details .{} button')].map((b) => b.innerText)"
    assert browser.evaluate(buttons.format("needs")) == ["1F2", "2SEND_B2"]
    assert browser.evaluate(buttons.format("users")) == ["1SEND_B2"]
    assert "right after 2SEND_B2" in text_of(browser, "#details")
    # Highlighted: the block, the work before it, and the work at the message's other end.
    for text in ("1B2", "1F2", "2B2", "0B2"):
        x, y = middle_of(browser, text)
        assert color_at(browser, x, y - 15) in {"#d75f00", "#005faf"}, text
    x, y = middle_of(browser, "3B5")
    assert color_at(browser, x, y - 15) not in {"#d75f00", "#005faf"}
    browser.evaluate("document.querySelector('#details .users button').click()")
    assert text_of(browser, "#details h3") == "1SEND_B2"
    browser.key("Escape")
    assert text_of(browser, "#details").startswith("Click an action")


def test_the_critical_path_stands_out(show: Show):
    browser = show(small())
    browser.evaluate("document.querySelector('[data-toggle=critical]').click()")
    browser.evaluate(FRAME)
    path = browser.evaluate(
        "(({ timeline }) => timeline.critical.map((n) => timeline.text(n)))"
        "(window.fullbore.charts[0])"
    )
    full = {"#d75f00", "#005faf"}
    work = [f"{stage}{kind}{m}" for stage in range(4) for kind in "FB" for m in range(8)]
    for text in work:
        x, y = middle_of(browser, text)
        assert (color_at(browser, x, y - 15) in full) == (text in path), text


def test_the_wheel_zooms_about_the_pointer(show: Show):
    browser = show(small())
    x, y = middle_of(browser, "1B2")
    before = window_of(browser)
    browser.mouse("Wheel", x, y, deltaX=0, deltaY=-500)
    browser.wait("window.fullbore.state.from > 0")
    start, end = window_of(browser)
    assert end - start < 0.6 * (before[1] - before[0])
    assert middle_of(browser, "1B2")[0] == pytest.approx(x, abs=0.5)
    browser.mouse("Wheel", x, y, deltaX=0, deltaY=5000)
    browser.wait("window.fullbore.state.from === 0")
    assert window_of(browser) == pytest.approx(before)


def test_dragging_pans_and_does_not_select(show: Show):
    browser = show(small())
    browser.key("+")
    start, end = window_of(browser)
    browser.mouse("Pressed", 700, 200, button="left", clickCount=1)
    for x in (650, 600):
        browser.mouse("Moved", x, 200, button="left", buttons=1)
    browser.mouse("Released", 600, 200, button="left", clickCount=1)
    moved_start, moved_end = window_of(browser)
    assert moved_start > start
    assert moved_end - moved_start == pytest.approx(end - start)
    assert browser.evaluate("window.fullbore.selected") is None


def test_everything_works_from_the_keyboard(show: Show):
    browser = show(small())
    browser.key("n")
    assert text_of(browser, "#details h3") == "0F0"
    browser.key("n")
    assert text_of(browser, "#details h3") == "0F1"
    browser.key("p")
    assert text_of(browser, "#details h3") == "0F0"
    full = window_of(browser)
    browser.key("+")
    zoomed = window_of(browser)
    assert zoomed[1] - zoomed[0] == pytest.approx((full[1] - full[0]) / 2)
    browser.key("ArrowRight")
    assert window_of(browser)[0] > zoomed[0]
    browser.key("0")
    assert window_of(browser) == pytest.approx(full)
    for key, name in (("c", "critical"), ("m", "memory"), ("a", "messages")):
        before = browser.evaluate(f"window.fullbore.state.{name}")
        browser.key(key)
        assert browser.evaluate(f"window.fullbore.state.{name}") is not before
        pressed = f"document.querySelector('[data-toggle={name}]').ariaPressed"
        assert browser.evaluate(pressed) == str(not before).lower()


def test_two_timelines_share_time_and_selection(show: Show):
    browser = show(small("zbv", title="one"), small("dualpipev", title="two"))
    browser.click(*middle_of(browser, "5F2", 1))
    browser.evaluate(FRAME)
    assert "one: " in text_of(browser, "#details")
    tops = "window.fullbore.charts.map(({ canvas }) => canvas.getBoundingClientRect().top)"
    above, below = browser.evaluate(tops)
    assert above < below
    browser.key("b")
    browser.evaluate(FRAME)
    left, right = browser.evaluate(tops)
    assert left == right


def test_more_ranks_than_fit_are_scrolled_to(show: Show):
    browser = show(simulated(build("1f1b", num_ranks=64, num_microbatches=8), COSTS))
    browser.evaluate(
        "window.fullbore.select(window.fullbore.charts[0],"
        " window.fullbore.charts[0].timeline.twin('60B0'))"
    )
    browser.evaluate("window.fullbore.reveal()")
    browser.evaluate(FRAME)
    x, y = middle_of(browser, "60B0")
    browser.click(x, y)
    assert text_of(browser, "#details h3") == "60B0"


def test_a_hostile_title_is_text(show: Show):
    browser = show(small(title=HOSTILE))
    assert browser.evaluate("window.hacked === undefined")
    assert text_of(browser, "h2") == HOSTILE
    assert browser.evaluate("document.title") == HOSTILE


def test_large_schedules_are_drawn_and_found(show: Show):
    schedule = build(
        "interleaved_zero_bubble", num_ranks=16, num_microbatches=105, stages_per_rank=4
    )
    browser = show(simulated(schedule, COSTS))
    for text in ("0F0", "63W104"):
        browser.evaluate(
            f"window.fullbore.select(window.fullbore.charts[0],"
            f" window.fullbore.charts[0].timeline.twin({text!r}))"
        )
        browser.evaluate("window.fullbore.zoom(0.001, 0), window.fullbore.reveal()")
        browser.evaluate(FRAME)
        browser.mouse("Moved", *middle_of(browser, text))
        assert text_of(browser, "#tip").startswith(f"{text}: ")


def test_an_svg_opens(browser: Browser, tmp_path: Path):
    path = tmp_path / "picture.svg"
    save_picture(small(), path)
    browser.errors.clear()
    browser.open(path.as_uri(), ready="document.documentElement.tagName === 'svg'")
    assert browser.evaluate("document.querySelectorAll('text').length") > 64
    assert browser.errors == []
