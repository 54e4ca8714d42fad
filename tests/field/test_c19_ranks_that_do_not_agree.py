"""C19: ranks with another number of microbatches, another schedule, or in another kind of run."""

from functools import partial

import pytest
from tests.runtime.faults.harness import Kind, Setting, play
from tests.runtime.faults.scenes import evaluate_alone, other_schedule

import fullbore as fb

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

ODD = [("1f1b", 2), ("gpipe", 4)]


@pytest.fixture(params=["shm", "p2p"])
def setting(request: pytest.FixtureRequest) -> Setting:
    kind: Kind = request.param
    return Setting(kind, 2, timeout=300.0)


@pytest.mark.parametrize("odd", ODD, ids=["microbatches", "family"])
def test_c19_another_schedule_is_an_error_on_every_rank(setting: Setting, odd: tuple[str, int]):
    usual, other = (
        fb.build(name, num_ranks=2, num_microbatches=count) for name, count in (("1f1b", 4), odd)
    )
    seen = play(partial(other_schedule, (usual, other), 1), setting)
    for one in seen:
        assert "the ranks do not run the same schedule" in one.text
        assert f"{odd[0]} of 2 ranks, 2 stages and {odd[1]} microbatches" in one.text
        assert one.seconds < 5.0


def test_c19_step_and_eval_at_once_are_an_error_on_every_rank(setting: Setting) -> None:
    seen = play(partial(evaluate_alone, 2, 0), setting)
    for one in seen:
        assert "all ranks make the same calls, in the same order" in one.text
        assert one.seconds < 5.0
        assert one.texts is not None
        assert one.texts[1] == "fine"
