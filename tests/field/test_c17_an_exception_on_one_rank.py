"""C17: 1f1b on four ranks, stage 1 raises in microbatch 3."""

from functools import partial

import pytest
from tests.runtime.faults.harness import Kind, Setting, play
from tests.runtime.faults.scenes import Fault, with_fault

pytestmark = [pytest.mark.torch, pytest.mark.gloo]


@pytest.mark.parametrize("kind", ["shm", "p2p"])
def test_c17_every_rank_raises_within_5_s_and_says_where_and_why(kind: Kind) -> None:
    for seen in play(partial(with_fault, 4, Fault("raise", 1)), Setting(kind, 4, timeout=300.0)):
        assert "ValueError: boom (rank 1, stage 1, action 1F3)" in seen.text
        assert seen.seconds < 5.0
