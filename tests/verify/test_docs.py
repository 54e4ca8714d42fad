"""docs/verify.md shows every rule, its example and what the verifier says about it."""

import doctest
import re
from pathlib import Path

from tests.verify.support import example

from fullbore.verify import RULES, verify

PAGE = Path(__file__).parents[2] / "docs" / "verify.md"


def section(rule: str) -> str:
    """The part of the page about a rule."""
    known = RULES[rule]
    shown = known.example
    count = shown.num_microbatches
    terms = [
        f"placement {', '.join(map(str, shown.ranks))}",
        f"{count} microbatch{'es' if count > 1 else ''}",
        f"{shown.form.name} form",
        *(["forward-only"] if shown.forward_only else []),
    ]
    [found] = verify(example(rule))
    lines = [
        f"### `{rule}`",
        known.says,
        f"Smallest example ({'; '.join(terms)}):",
        f"```\n{shown.csv}\n```",
        f"```\n{found}\n```",
    ]
    return "\n\n".join(lines) + "\n"


def test_the_page_lists_all_rules_in_order():
    text = PAGE.read_text("utf-8")
    assert re.findall(r"^### `(.*)`$", text, re.MULTILINE) == list(RULES)


def test_the_page_shows_each_rule_as_it_is():
    text = PAGE.read_text("utf-8")
    for rule in RULES:
        assert section(rule) in text


def test_the_examples_of_the_page_are_right():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert failed == 0
    assert tried > 5
