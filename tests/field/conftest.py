"""What the field cases share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.field.scenarios import Runner


@pytest.fixture(params=["local", "shared memory", "gloo"])
def runner(request: pytest.FixtureRequest) -> Runner:
    """Runs a scenario one way or another."""
    from tests.field.scenarios import local, processes, shared_memory

    if request.param == "gloo":
        return processes(request.getfixturevalue("pool"))
    return {"local": local, "shared memory": shared_memory}[request.param]
