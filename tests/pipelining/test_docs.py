"""The page's example runs and prints what it says."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

PAGE = (Path(__file__).parents[2] / "docs" / "pipelining.md").read_text("utf-8")


def test_the_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]):
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(code, "docs/pipelining.md", "exec"), {})
    (said,) = re.findall(r"print\(.*\)  # (.+)", code)
    assert capsys.readouterr().out.strip() == said


def test_the_diff_is_of_names_that_exist():
    (text,) = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for line in text.splitlines():
        exec(line[1:], {})
