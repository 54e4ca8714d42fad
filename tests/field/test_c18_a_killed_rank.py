"""C18: a rank is killed in the middle of a step."""

from functools import partial

import pytest
from tests.runtime.faults.harness import Kind, Setting, play
from tests.runtime.faults.scenes import Fault, with_fault

pytestmark = [pytest.mark.torch, pytest.mark.gloo]


@pytest.mark.parametrize("place", ["F", "B"])
@pytest.mark.parametrize("kind", ["shm", "p2p"])
def test_c18_the_others_raise_within_10_s_and_name_it(kind: Kind, place: str) -> None:
    fault = Fault("kill", 2, place, 1)  # type: ignore[arg-type] # one of the places
    seen = play(partial(with_fault, 4, fault), Setting(kind, 4, timeout=300.0))
    assert seen[2].texts is None
    for rank in (0, 1, 3):
        assert "rank 2 failed: its process is gone" in seen[rank].text
        assert seen[rank].seconds < 10.0
