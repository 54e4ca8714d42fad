import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "planning.md"


def test_the_examples_of_the_page_are_right():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert failed == 0
    assert tried > 5
