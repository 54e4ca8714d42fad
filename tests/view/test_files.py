"""Which file is written follows from the ending."""

import json
from pathlib import Path

import pytest

from fullbore.errors import ParameterError
from fullbore.schedules import build
from fullbore.view import save_picture, simulated
from fullbore.view.files import WRITERS

PANEL = simulated(build("1f1b", num_ranks=2, num_microbatches=2))
HEADS = {".svg": b"<?xml", ".png": b"\x89PNG", ".html": b"<!DOCTYPE html>", ".trace.json": b"{"}


def test_there_is_a_head_for_every_ending():
    assert HEADS.keys() == WRITERS.keys()


@pytest.mark.parametrize("ending", WRITERS)
def test_the_ending_decides(tmp_path: Path, ending: str):
    for name in (f"a{ending}", f"b{ending.upper()}"):
        save_picture(PANEL, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(HEADS[ending])


@pytest.mark.parametrize("ending", [".svg", ".png", ".html"])
def test_two_panels_make_one_file(tmp_path: Path, ending: str):
    one, two = tmp_path / f"one{ending}", tmp_path / f"two{ending}"
    save_picture(PANEL, one, dark=True)
    save_picture([PANEL, PANEL], two, dark=True)
    assert two.stat().st_size > one.stat().st_size


def test_a_trace_is_of_one_panel(tmp_path: Path):
    path = tmp_path / "a.trace.json"
    save_picture([PANEL], path)
    assert json.loads(path.read_text("utf-8"))["otherData"]["title"] == PANEL.title
    with pytest.raises(ParameterError, match="one panel a file, got 2"):
        save_picture([PANEL, PANEL], path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.json", r"a trace is a \.trace\.json"),
        ("a.pdf", r"a\.pdf: pictures end in \.svg, \.png, \.html, \.trace\.json$"),
        ("svg", "svg: pictures end in"),
    ],
)
def test_other_endings_are_refused(tmp_path: Path, name: str, message: str):
    with pytest.raises(ParameterError, match=message):
        save_picture(PANEL, tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "option"), [("a.html", "memory"), ("a.trace.json", "dark"), ("a.svg", "unit")]
)
def test_options_that_an_ending_lacks_are_refused(tmp_path: Path, name: str, option: str):
    with pytest.raises(ParameterError, match=f"have no option '{option}'"):
        save_picture(PANEL, tmp_path / name, **{option: True})
    assert not list(tmp_path.iterdir())
