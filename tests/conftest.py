"""Shared options and fixtures.

`-m 'not torch ...'` runs the torch-free tests without torch: files whose `pytestmark` says that
they need it are not imported, and importing torch from any other test is an error.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
from hypothesis import settings

from tests.goldens import Golden
from tests.pool import Pool

NEEDS_TORCH = {"torch", "gloo", "monarch", "gpu"}
PYTESTMARK = re.compile(r"^pytestmark\s*=\s*(\[[^\]]*\]|.*)", re.MULTILINE)

# A loaded machine is no defect, and CI must not fail by the luck of a draw.
settings.register_profile("fullbore", deadline=None, derandomize="CI" in os.environ)
# `pytest tests/adversarial --hypothesis-profile thorough` looks further.
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile("fullbore")


class NoTorch(MetaPathFinder):
    """Refuses to import torch."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname == "torch":
            raise ModuleNotFoundError("a torch-free test imports torch; is its mark missing?")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the files in tests/golden to match what the tests produce",
    )


def is_torch_free(markexpr: str) -> bool:
    return "not torch" in markexpr


def marks_of_file(text: str) -> set[str]:
    return {mark for line in PYTESTMARK.findall(text) for mark in re.findall(r"mark\.(\w+)", line)}


def is_left_out(path: Path, markexpr: str) -> bool:
    if path.suffix != ".py" or not is_torch_free(markexpr):
        return False
    return bool(marks_of_file(path.read_text("utf-8")) & NEEDS_TORCH)


def pytest_configure(config: pytest.Config) -> None:
    if is_torch_free(config.option.markexpr):
        sys.meta_path.insert(0, NoTorch())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return is_left_out(collection_path, config.option.markexpr) or None


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(name, text)` compares a text with `tests/golden/<name>`."""
    folder = request.config.rootpath / "tests" / "golden"
    return Golden(folder, update=request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def pool() -> Iterator[Callable[[int], Pool]]:
    """``pool(2).run(function, *args)`` calls ``function(rank, 2, *args)`` in two processes that
    share a gloo group."""
    pools: dict[int, Pool] = {}

    def of_size(size: int) -> Pool:
        return pools.setdefault(size, Pool(size))

    yield of_size
    for made in pools.values():
        made.close()
