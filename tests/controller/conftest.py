"""Monarch's processes, shared by the tests of a module: they take seconds to start."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest


@pytest.fixture(scope="module")
def procs() -> Iterator[Any]:
    """A mesh of four processes."""
    # The engine sets Monarch up when it imports it.
    engine: Any = import_module("fullbore.controller.monarch")
    mesh = engine.this_host().spawn_procs(per_host={"ranks": 4}, name="tests")
    yield mesh
    mesh.stop().get(timeout=30)
