"""Memory against idle time, drawn."""

import base64
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from fullbore.errors import ParameterError
from fullbore.view import Front, Spot, render_frontier, render_frontier_page, save_frontier
from fullbore.view.sheet import DARK, LIGHT

SVG = "{http://www.w3.org/2000/svg}"
FRONT = Front(
    title="8 ranks & <friends>",
    plans=[Spot(4, 0.2, "v_min"), Spot(6, 0.1, "loop 4"), Spot(8, 0.05, "loop 4")],
    bounds=[(4, 0.15), (6, 0.08), (8, 0.05)],
    families=[
        Spot(4, 0.2, "v_min"),
        Spot(7, 0.12, "gis"),
        Spot(24, 0.2, "gpipe"),
        Spot(5, 0.9, "odd"),
    ],
    unit="microbatches",
)


def texts(svg: bytes) -> list[str]:
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


def test_plans_and_families_are_named_once():
    found = texts(render_frontier(FRONT))
    assert found.count("v_min") == 1
    assert found.count("loop 4") == 2
    assert found.count("gis") == 1
    assert "8 ranks & <friends>" in found
    assert "memory of a rank (microbatches)" in found
    assert "no schedule can be here" in found
    # One would take more memory than there is here, one idles longer than the axis is high.
    assert "gpipe" not in found
    assert "odd" not in found
    assert "2 more families need more memory or idle longer" in found


def test_light_and_dark():
    for dark, colors in ((False, LIGHT), (True, DARK)):
        svg = render_frontier(FRONT, dark=dark)
        assert colors.ground.encode() in svg
        assert svg == render_frontier(FRONT, dark=dark)


def test_one_plan_is_enough():
    alone = FRONT._replace(plans=FRONT.plans[:1], bounds=FRONT.bounds[:1], families=[])
    assert "v_min" in texts(render_frontier(alone))


def test_a_page_has_both_pictures_and_the_numbers():
    page = render_frontier_page(FRONT)
    images = [base64.b64decode(data) for data in re.findall(r"svg\+xml;base64,([\w+/=]+)", page)]
    assert len(images) == 2
    for image, colors in zip(images, (DARK, LIGHT), strict=True):
        assert colors.ground.encode() in image
    assert page.count("<tr>") == 1 + 3 + 4
    assert "<td>gpipe<td>24<td>20.00%<td>" in page
    assert "8 ranks &amp; &lt;friends&gt;" in page
    assert "<friends>" not in page


@pytest.mark.parametrize(
    ("ending", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("html", b"<!DOCTYPE")]
)
def test_files(tmp_path: Path, ending: str, start: bytes):
    save_frontier(FRONT, tmp_path / f"front.{ending}")
    assert (tmp_path / f"front.{ending}").read_bytes().startswith(start)


def test_nonsense(tmp_path: Path):
    with pytest.raises(ParameterError, match=r"ends in \.svg, \.png, \.html"):
        save_frontier(FRONT, tmp_path / "front.json")
    with pytest.raises(ParameterError, match="svg or png, got 'pdf'"):
        render_frontier(FRONT, "pdf")
    with pytest.raises(ParameterError, match="no plan to draw"):
        render_frontier(FRONT._replace(plans=[]))
