"""Shared memory: what it takes, what it gives back, and what forks and deaths do to it."""

import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from tests.runtime.transport.scenario import DOWN, Scene, shm_ranks

from fullbore.errors import ParameterError, PeerFailed
from fullbore.runtime.transport import SharedMemoryTransport
from fullbore.runtime.transport.memory import IDLE_STEPS, capacity

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only"),
]

LARGE = 100_000
NOTHING = Scene([])


def segments() -> int:
    """Mappings of shared memory in this process, which plays both ranks."""
    return Path("/proc/self/maps").read_text().count("memfd:fullbore")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def pass_down(ranks: dict[int, SharedMemoryTransport], tag: int, size: int) -> torch.Tensor:
    ranks[1].post(DOWN, tag)
    ranks[0].send(DOWN, tag, torch.full((size,), float(tag)))
    got: torch.Tensor = ranks[1].recv(DOWN, tag)
    return got


def test_large_tensors_are_not_copied_by_the_receiver():
    with shm_ranks(NOTHING) as ranks:
        got = pass_down(ranks, 1, LARGE)
        assert "memfd:fullbore" in mapping_of(got.data_ptr())
        small = pass_down(ranks, 2, 10)
        assert "memfd:fullbore" not in mapping_of(small.data_ptr())


def mapping_of(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        if low <= address < high:
            return line
    return ""


def test_memory_is_used_again_once_the_receiver_has_dropped_the_tensors():
    before = segments()
    with shm_ranks(NOTHING) as ranks:
        for tag in range(100):
            pass_down(ranks, tag, LARGE)
        assert 0 < segments() - before <= 2 * 16


def test_memory_of_tensors_that_are_held_is_left_alone():
    with shm_ranks(NOTHING) as ranks:
        held = []
        for tag in range(60):
            tensor = pass_down(ranks, tag, LARGE)
            if tag % 3 == 0:
                held.append((tag, tensor[5:10]))
            if tag % 7 == 6:
                del held[0]
        assert all(part.eq(tag).all() for tag, part in held)
    assert all(part.eq(tag).all() for tag, part in held)


def test_memory_that_no_step_uses_any_more_is_given_up():
    with shm_ranks(NOTHING) as ranks:
        held = [pass_down(ranks, tag, LARGE) for tag in range(5)]
        before = segments()
        held.clear()
        for tag in range(5, 5 + 3 * IDLE_STEPS):
            pass_down(ranks, tag, 10)
            for transport in ranks.values():
                transport.flush()
        ranks[1].post(DOWN, 999)
        ranks[0].send(DOWN, 999, torch.ones(1))
        ranks[1].recv(DOWN, 999)
        assert segments() <= before - 2 * 5


def test_nothing_stays_open():
    with shm_ranks(NOTHING) as ranks:
        pass_down(ranks, 1, LARGE)
    files, mapped = open_files(), segments()
    for _ in range(3):
        with shm_ranks(NOTHING) as ranks:
            for tag in range(10):
                pass_down(ranks, tag, LARGE * (tag % 3 + 1))
    del ranks
    assert open_files() <= files
    assert segments() <= mapped


def test_more_packets_than_a_socket_holds():
    with shm_ranks(NOTHING, max_ahead=5000) as ranks:
        count = 3000

        def flood() -> None:
            for tag in range(count):
                ranks[0].send(DOWN, tag, torch.full((500,), float(tag)))

        sender = threading.Thread(target=flood)
        sender.start()
        time.sleep(0.1)
        for tag in range(count):
            ranks[1].post(DOWN, tag)
            assert float(ranks[1].recv(DOWN, tag)[0]) == tag
        sender.join()


def test_ranks_that_reset_differently_often_agree_in_the_end():
    with shm_ranks(NOTHING) as ranks:
        ranks[1].reset()
        for _ in range(3):
            ranks[0].reset()
        ranks[1].post(DOWN, 1)
        with pytest.raises(PeerFailed, match="rank 0 failed: it has given up this run"):
            ranks[1].recv(DOWN, 1)
        ranks[1].reset()
        assert float(pass_down(ranks, 2, 1)) == 2.0


def test_a_tensor_of_another_device_is_refused():
    with (
        shm_ranks(NOTHING) as ranks,
        pytest.raises(ParameterError, match="CPU tensors only; use P2PTransport"),
    ):
        ranks[0].send(DOWN, 1, (torch.ones(2), torch.empty(2, device="meta")))


def test_other_systems_are_told_what_to_use(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ParameterError, match="needs Linux; use P2PTransport"):
        SharedMemoryTransport(0, {})


@pytest.mark.parametrize("options", [{"timeout": 0.0}, {"timeout": float("inf")}, {"max_ahead": 0}])
def test_options_that_make_no_sense(options):
    (name,) = options
    with pytest.raises(ParameterError, match=name):
        SharedMemoryTransport(0, {}, **options)


def test_sizes_of_segments_waste_at_most_half():
    sizes = [capacity(nbytes) for nbytes in range(1, 2_000_000, 997)]
    wanted = range(1, 2_000_000, 997)
    assert all(n <= size <= max(1.5 * n, 8192) for n, size in zip(wanted, sizes, strict=True))
    assert len(Counter(sizes)) < 20
