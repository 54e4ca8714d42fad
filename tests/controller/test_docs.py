"""The page's examples are true."""

import doctest
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

PAGE = Path(__file__).parents[2] / "docs" / "controller.md"


def test_every_session_is_true():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried > 0
    assert failed == 0
