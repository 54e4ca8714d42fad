"""The workers that the tests share."""

import os

import pytest
from tests.pool import Pool, WorkerFailed

pytestmark = [pytest.mark.torch, pytest.mark.gloo]


def name(rank: int, size: int, suffix: str) -> tuple[int, str]:
    return os.getpid(), f"{rank}/{size}{suffix}"


def fail(rank: int, size: int) -> None:
    raise KeyError("the reason")


def test_new_workers_serve_after_a_failure_and_none_is_left():
    pool = Pool(1)
    try:
        ((first, text),) = pool.run(name, "!")
        assert text == "0/1!"
        ((again, _),) = pool.run(name, "")
        assert again == first
        with pytest.raises(WorkerFailed, match="rank 0 of 1: Traceback") as caught:
            pool.run(fail)
        assert str(caught.value).endswith("KeyError: 'the reason'\n")
        ((second, _),) = pool.run(name, "")
        assert second != first
    finally:
        pool.close()
    for pid in (first, second):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
