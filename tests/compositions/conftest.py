"""``pytest tests/compositions --update-compatibility`` writes docs/compatibility.md."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tests.compositions.page import FAMILIES, PAGE, compositions, render

CELL = re.compile(r"tests/compositions/test_(\w+)\.py::(test_works|test_refused)\[(.+)\]")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-compatibility",
        action="store_true",
        help="write docs/compatibility.md; needs all of tests/compositions to be run",
    )


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums are split among threads: the loop must have as many as a rank."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Outcomes:
    """Collects the cells."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str], str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = CELL.fullmatch(report.nodeid)
        if found is None or report.when != "call" or not report.passed:
            return
        name, test, family = found.groups()
        reason = dict(report.user_properties).get("reason")
        self.cells[name, family] = "works" if test == "test_works" else f"refused: {reason}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        cells = {(name, family) for name in compositions() for family in FAMILIES}
        missing = sorted(cells - set(self.cells))
        if missing:
            terminalreporter.write_line(f"{PAGE.name} is left as it was; not passed: {missing}")
            return
        PAGE.write_text(render(self.cells), "utf-8")


def pytest_configure(config: pytest.Config) -> None:
    # The option is known only where pytest is pointed at this folder.
    if config.getoption("--update-compatibility", default=False):
        config.pluginmanager.register(Outcomes())
