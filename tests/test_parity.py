"""The page for people who come from another system says what is true."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from fullbore.verify import RULES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "parity.md").read_text("utf-8")

HEADER = ["there", "here", "shown by"]
ROWS = {
    "The text of an action": 19,
    "The schedule and its picture": 9,
    "Lowering": 22,
    "Checking": 17,
    "Time": 9,
    "Schedule families": 20,
    "Running a schedule": 30,
    "What each action does": 17,
    "Stages": 16,
    "The drop-in classes": 33,
    "The controller": 42,
    "Files": 7,
    "What is better here": 18,
}

TESTS = re.compile(r"`tests/[\w/]+\.py::\w+`(<br>`tests/[\w/]+\.py::\w+`)*")
NO_TEST = re.compile(r"(later: with|left out:) .+")
CODE = re.compile(r"`([^`]+)`")
RULE = re.compile(r"`([a-z]+(?:-[a-z]+)+)`")
NAME = re.compile(
    r"(?:errors|ir|formats|verify|passes|schedules|sim|view|runtime|pipelining|controller)\.[\w.]+"
)


class Row(NamedTuple):
    section: str
    there: str
    here: str
    outcome: str


def rows(text: str) -> Iterator[Row]:
    """The rows of all tables, without their headers."""
    section = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == len(HEADER), line
        if cells != HEADER and set("".join(cells)) != {"-"}:
            yield Row(section, *cells)


TABLE = list(rows(PAGE))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def find(body: list[ast.stmt], name: str) -> ast.stmt | None:
    """The statement that binds ``name``."""
    for node in body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() if node.name == name:
                return node
            case ast.AnnAssign(target=ast.Name(id=bound)) if bound == name:
                return node
            case ast.Assign(targets=[ast.Name(id=bound)]) if bound == name:
                return node
            case ast.ImportFrom() if name in [alias.asname or alias.name for alias in node.names]:
                return node
    return None


def is_there(dotted: str) -> bool:
    """Whether fullbore has that module, name in a module, or attribute of a class."""
    path, names = ROOT / "src" / "fullbore", dotted.split(".")
    while names and (path / names[0]).is_dir():
        path /= names.pop(0)
    if names and path.joinpath(f"{names[0]}.py").is_file():
        path = path / f"{names.pop(0)}.py"
    else:
        path /= "__init__.py"
    body = parsed(path).body
    for position, name in enumerate(names):
        found = find(body, name)
        if isinstance(found, ast.ImportFrom):
            assert found.module is not None
            home = found.module.removeprefix("fullbore.")
            return is_there(".".join([home, *names[position:]]))
        if found is None:
            return False
        body = found.body if isinstance(found, ast.ClassDef) else []
    return True


def test_nothing_was_lost():
    assert Counter(row.section for row in TABLE) == ROWS
    assert len({row.there for row in TABLE}) == len(TABLE)


def test_every_row_is_shown_or_says_why_not():
    wrong = [
        row
        for row in TABLE
        if not (row.there and row.here)
        or not (TESTS.fullmatch(row.outcome) or NO_TEST.fullmatch(row.outcome))
    ]
    assert not wrong


def test_every_test_exists():
    named = [text.split("::") for row in TABLE for text in CODE.findall(row.outcome)]
    named = [pair for pair in named if len(pair) == 2]
    missing = {
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).is_file()
        or not isinstance(find(parsed(ROOT / path).body, name), ast.FunctionDef)
    }
    assert not missing


def test_every_name_exists():
    names = {
        name for row in TABLE for text in CODE.findall(row.here) for name in NAME.findall(text)
    }
    assert len(names) > 30
    assert not {name for name in names if not is_there(name)}


def test_every_rule_exists():
    rules = {rule for row in TABLE for rule in RULE.findall(row.here)}
    assert len(rules) > 20
    assert rules <= RULES.keys()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ir.Kind", True),
        ("runtime.Transport.connect", True),
        ("schedules.rounds.weave", True),
        ("runtime.Transport.teleport", False),
        ("ir.Sort", False),
        ("schedules.rounds.wove", False),
    ],
)
def test_names_are_looked_up(name: str, expected: bool):
    assert is_there(name) is expected
