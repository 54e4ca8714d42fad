"""The README tells the truth: its examples run, and its grid is what fullbore draws."""

import doctest
import re
from pathlib import Path

import pytest

import fullbore as fb

pytestmark = pytest.mark.torch

README = Path(__file__).parent.parent / "README.md"


def test_the_examples_run() -> None:
    results = doctest.testfile(str(README), module_relative=False, verbose=False)
    assert results.attempted >= 8
    assert results.failed == 0


def test_the_grid_is_what_fullbore_draws() -> None:
    drawn = str(fb.build("zbv_zero_bubble", num_ranks=2, num_microbatches=4))
    assert f"```\n{drawn}\n```" in README.read_text()


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", README.read_text())
    missing = [target for target in targets if not (README.parent / target).exists()]
    assert targets
    assert missing == []
