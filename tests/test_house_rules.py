"""The sizes that CONTRIBUTING.md promises."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_LINES_OF_FILE = 400
MAX_LINES_OF_FUNCTION = 50


def python_files() -> list[Path]:
    return [path for folder in ("src", "tests", "bench") for path in (ROOT / folder).rglob("*.py")]


def oversized(text: str, name: str) -> Iterator[str]:
    lines = len(text.splitlines())
    if lines > MAX_LINES_OF_FILE:
        yield f"{name} has {lines} lines"
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        assert node.end_lineno is not None
        lines = node.end_lineno - node.lineno + 1
        if lines > MAX_LINES_OF_FUNCTION:
            yield f"{name}:{node.lineno} {node.name} has {lines} lines"


def test_files_and_functions_are_small():
    found = [
        complaint
        for path in python_files()
        for complaint in oversized(path.read_text("utf-8"), str(path.relative_to(ROOT)))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pass\n" * 400, []),
        ("pass\n" * 401, ["x.py has 401 lines"]),
        ("def f():\n" + "    pass\n" * 49, []),
        ("class A:\n    async def f(self):\n" + "        pass\n" * 50, ["x.py:2 f has 51 lines"]),
    ],
    ids=["file fits", "file too long", "function fits", "function too long"],
)
def test_what_is_counted(text: str, expected: list[str]):
    assert list(oversized(text, "x.py")) == expected


def test_every_test_file_is_collected():
    stray = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if not path.name.startswith("test_") and "\ndef test_" in path.read_text("utf-8")
    ]
    assert not stray
