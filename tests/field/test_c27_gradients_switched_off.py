"""C27: ``step`` inside ``no_grad`` or ``inference_mode`` on one rank only."""

from functools import partial

import pytest
from tests.runtime.faults.harness import Kind, Setting, play
from tests.runtime.faults.scenes import without_gradients

pytestmark = [pytest.mark.torch, pytest.mark.gloo]


@pytest.mark.parametrize(("mode", "where"), [("no_grad", 0), ("inference_mode", 2)])
@pytest.mark.parametrize("kind", ["shm", "p2p"])
def test_c27_one_clear_error_on_every_rank(kind: Kind, mode: str, where: int) -> None:
    seen = play(partial(without_gradients, 3, mode, where), Setting(kind, 3, timeout=300.0))
    for one in seen:
        assert one.texts is not None
        before, failed, after = one.texts
        assert "step() computes gradients, which are switched off here" in failed
        assert before == after == "fine"
        assert one.seconds < 5.0
