"""The page on split backwards is true."""

import doctest
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

PAGE = Path(__file__).parents[3] / "docs" / "split_backward.md"


def test_every_session_is_true():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried > 0
    assert failed == 0
