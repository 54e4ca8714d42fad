"""Processes that the tests of the runtime share."""

from collections.abc import Callable, Iterator

import pytest
from tests.pool import Pool


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
