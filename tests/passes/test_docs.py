import doctest
from pathlib import Path

from fullbore.passes import PASSES

PAGE = Path(__file__).parents[2] / "docs" / "passes.md"


def test_the_examples_of_the_page_are_right():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert failed == 0
    assert tried > 10


def test_every_pass_is_on_the_page():
    text = PAGE.read_text("utf-8")
    assert [name for name in PASSES if f"\n| `{name}` |" not in text] == []
