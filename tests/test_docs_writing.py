"""The examples in the pages on schedules: every file loads and is valid, every session is true."""

import doctest
import re
from pathlib import Path

import pytest

from fullbore.formats import DIALECTS, FORMATS, loads
from fullbore.verify import verify

DOCS = Path(__file__).parents[1] / "docs"
WRITING = "writing-schedules.md"
BLOCK = re.compile(r"^```(\S+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> list[tuple[str, str, str]]:
    found = BLOCK.findall((DOCS / WRITING).read_text("utf-8"))
    return [(name, dialect or "torch", text) for name, dialect, text in found if name in FORMATS]


@pytest.mark.parametrize(("name", "dialect", "text"), examples())
def test_every_file_loads_and_is_valid(name: str, dialect: str, text: str):
    assert verify(loads(text, format=name, dialect=dialect)) == ()


def test_every_format_and_dialect_has_an_example():
    assert {name for name, _, _ in examples()} == set(FORMATS)
    assert {dialect for _, dialect, _ in examples()} == set(DIALECTS)


def test_every_kind_of_file_is_shown_as_a_file():
    text = (DOCS / WRITING).read_text("utf-8")
    assert {name for name, _, _ in BLOCK.findall(text)} == {*FORMATS, "python"}
    assert text.count("```") == 2 * len(BLOCK.findall(text))


@pytest.mark.parametrize("page", [WRITING, "formats.md", "ir.md"])
def test_every_session_is_true(page: str):
    failed, tried = doctest.testfile(str(DOCS / page), module_relative=False)
    assert tried > 0
    assert failed == 0
