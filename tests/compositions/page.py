"""docs/compatibility.md: what is written there, and what the tests of this folder say.

The page is made by ``pytest tests/compositions --update-compatibility`` out of the outcomes of
that run. Every file is a column; its name, and the first paragraph of its docstring, say what is
combined.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
FAMILIES = (
    *("gpipe", "1f1b", "looped_bfs", "interleaved_1f1b"),
    *("interleaved_zero_bubble", "zbv_zero_bubble", "dualpipev"),
)

Outcomes = Mapping[tuple[str, str], str]
"""By composition and family: ``works``, or ``refused: `` and the reason."""

HEAD = """\
# What goes together

Each row is a family of schedules, each column something that it is combined with. A cell is the
outcome of a test that compares the gradients with those of the unpipelined model; there is no cell
without one. The reasons of refusals and the tests' files follow below the table, and
[compositions](compositions.md) says how each combination is written.

This page is made by `pytest tests/compositions --update-compatibility`; do not edit it.

"""
CELL = re.compile(r"works|refused \[(\d+)\]\(#refusals\)")


def compositions() -> dict[str, tuple[str, str]]:
    """By name: the test that gives the cells, and the docstring's first paragraph."""
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(FOLDER.glob("test_*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        for test in ("test_works", "test_refused"):
            if test in names:
                text = (ast.get_docstring(tree) or "").split("\n\n")[0]
                text = " ".join(text.split()).replace("``", "`")
                found[path.stem.removeprefix("test_")] = test, text
    return found


def render(outcomes: Outcomes) -> str:
    """The page for these outcomes.

    Raises:
        KeyError: one is missing.
    """
    known = compositions()
    reasons = list(
        dict.fromkeys(o for n in known for f in FAMILIES if (o := outcomes[n, f]) != "works")
    )

    def cell(name: str, family: str) -> str:
        outcome = outcomes[name, family]
        return (
            outcome if outcome == "works" else f"refused [{reasons.index(outcome) + 1}](#refusals)"
        )

    lines = [
        "| | " + " | ".join(name.replace("_", " ") for name in known) + " |",
        "|---" * (len(known) + 1) + "|",
        *(
            f"| `{family}` | " + " | ".join(cell(name, family) for name in known) + " |"
            for family in FAMILIES
        ),
        *("", "## Refusals", ""),
        *(f"{i}. {reason.removeprefix('refused: ')}" for i, reason in enumerate(reasons, 1)),
        *("", "## Tests", "", "| composition | what is tested | test |", "|---|---|---|"),
        *(
            f"| {name.replace('_', ' ')} | {text} | "
            f"[`{test}`](../tests/compositions/test_{name}.py) |"
            for name, (test, text) in known.items()
        ),
    ]
    return HEAD + "\n".join(lines) + "\n"


def complaints(text: str) -> Iterator[str]:
    """What the page lacks, or has too much."""
    known = compositions()
    rows = [
        [c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if "|" in line
    ]
    head = next((row for row in rows if row[0] == "" and len(row) > 3), [""])
    columns = [name.replace(" ", "_") for name in head[1:]]
    for name in sorted(set(columns) ^ set(known)):
        yield f"{name}: " + ("no column" if name in known else "a column, but no such tests")
    refusals = text.partition("## Refusals")[2].partition("## Tests")[0]
    for family in FAMILIES:
        row = next((row for row in rows if row[0] == f"`{family}`"), [""])
        cells = dict(zip(columns, row[1:], strict=False))
        for name in known:
            found = CELL.fullmatch(cells.get(name, ""))
            if found is None:
                yield f"{name} with {family}: {cells.get(name, 'no cell')!r}"
            elif (found.group(1) is None) != (known[name][0] == "test_works"):
                yield f"{name} with {family}: the page says {found.group()}, the test otherwise"
            elif found.group(1) and f"\n{found.group(1)}. " not in refusals:
                yield f"{name} with {family}: no reason"
    for name, (test, _) in known.items():
        if f"[`{test}`](../tests/compositions/test_{name}.py)" not in text:
            yield f"{name}: its test is not named"
    for name in re.findall(r"tests/compositions/test_(\w+)\.py", text):
        if name not in known:
            yield f"{name}: there is no such test"
