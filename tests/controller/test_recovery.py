"""A rank that is lost, and what recover= makes of it: played in one process."""

from __future__ import annotations

import logging
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.controller.cases import data, make, sgd
from tests.reference import WIDTH, linear_tanh
from torch import nn

from fullbore.controller import LocalEngine, RankLost
from fullbore.controller.host import Build
from fullbore.errors import ExecutionError, ParameterError

pytestmark = pytest.mark.torch


class Unreliable(LocalEngine):
    """Loses a rank when it is told to; its processes share nothing with the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[tuple[str, int, bool]] = []
        self.asked: list[str] = []
        self.starts = 0
        self.is_closed = False

    def lose(self, method: str, *, times: int = 1, before: bool = False) -> None:
        """In the next requests of this method: before the ranks hear of it, or afterwards."""
        self.losses += [(method, times, before)]

    def start(self, builds: Sequence[Build]) -> None:
        self.starts += 1
        super().start(pickle.loads(pickle.dumps(builds)))
        self._builds = builds

    def close(self) -> None:
        super().close()
        self.is_closed = True

    def pack(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        return [(method, pickle.dumps(own)) for own in arguments]

    def ask(self, messages: Sequence[Any]) -> list[Any]:
        ((method, data),) = messages
        self.asked.append(method)
        found = next((loss for loss in self.losses if loss[0] == method), None)
        if found is None:
            return super().ask([(method, pickle.loads(data))])
        self.losses.remove(found)
        if found[1] > 1:
            self.losses.append((method, found[1] - 1, found[2]))
        if not found[2]:
            super().ask([(method, pickle.loads(data))])
        raise RankLost("its process 123 was killed by SIGKILL", rank=1)


def stages() -> list[nn.Module]:
    """With dropout, whose masks come from the process's own generator."""
    return [nn.Sequential(part, nn.Dropout(0.2)) for part in linear_tanh(2)]


def train(engine: Any, recover: Any, faults: dict[int, tuple[str, int, bool]]) -> Any:
    """Five steps, some of which lose a rank; final state, last loss, last gradients."""
    torch.manual_seed(3)
    options: dict[str, Any] = {"engine": engine, "recover": recover, "optimizers": sgd}
    with make(2, stages(), **options) as pp:
        for step in range(5):
            if step in faults:
                method, times, before = faults[step]
                engine.lose(method, times=times, before=before)
            x, y = data(step)
            if step != 3:  # one step accumulates
                pp.zero_grad()
            loss = pp.run(x, y)
            x.zero_()  # a caller may fill the same tensors again
            y.zero_()
            pp.clip_grad_norm(0.5)
            pp.step()
        return pp.state_dict(), loss, pp.gradients()


@pytest.fixture(scope="module")
def undisturbed() -> Any:
    return train(Unreliable(), recover=False, faults={})


def assert_equal(found: Any, wanted: Any) -> None:
    assert torch.equal(found[1], wanted[1])
    for part in (0, 2):
        assert found[part].keys() == wanted[part].keys()
        assert all(torch.equal(value, wanted[part][name]) for name, value in found[part].items())


@pytest.mark.parametrize("every", [True, 1, 2, 10])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    "method",
    ["train", "optimizer_step", "zero_grad", "clip_grad_norm", "snapshot", "gradients"],
)
def test_the_numbers_are_those_of_an_undisturbed_run(
    undisturbed: Any, method: str, before: bool, every: Any
):
    steps = (0,) if method == "gradients" else (0, 2, 3)
    faults = dict.fromkeys(steps, (method, 1, before))
    engine = Unreliable()
    assert_equal(train(engine, every, faults), undisturbed)
    assert engine.starts > 1 or engine.losses


def test_states_are_held_as_seldom_as_asked_for():
    for every, count in ((1, 5), (2, 3), (10, 1)):
        engine = Unreliable()
        train(engine, every, {})
        assert engine.asked.count("snapshot") == count


def test_two_losses_in_a_row_are_survived(undisturbed: Any):
    engine = Unreliable()
    assert_equal(train(engine, True, {2: ("train", 2, False)}), undisturbed)
    assert engine.starts == 3


def test_a_rank_that_is_lost_every_time_is_given_up():
    engine = Unreliable()
    with pytest.raises(RankLost, match="rank 1: its process 123 was killed by SIGKILL"):
        train(engine, True, {2: ("train", 9, False)})
    assert engine.starts == 3


def test_without_recover_a_loss_is_the_end(caplog: pytest.LogCaptureFixture):
    engine = Unreliable()
    with make(2, stages(), engine=engine) as pp:
        pp.run(*data())
        engine.lose("train")
        with pytest.raises(RankLost, match="rank 1: its process 123 was killed by SIGKILL"):
            pp.run(*data())
        with pytest.raises(
            ExecutionError, match=r"cannot be used any more: rank 1: .* recover=True"
        ):
            pp.run(*data())


def test_a_recovery_is_logged(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "fullbore"):
        train(Unreliable(), True, {1: ("train", 1, False)})
    (record,) = caplog.records
    assert "rank 1: its process 123 was killed by SIGKILL; all ranks are started" in record.message


def test_an_exception_of_the_users_is_no_loss():
    class Broken(nn.Module):
        def forward(self, x: Any) -> Any:
            raise KeyError("boom")

    engine = LocalEngine()
    pp = make(2, [nn.Linear(WIDTH, WIDTH), Broken()], engine=engine, recover=True)
    with pp, pytest.raises(KeyError):
        pp.run(*data())


def test_a_step_that_failed_leaves_its_traces():
    """A stage fails after it has drawn random numbers, and a rank is lost steps later."""

    def train(engine: Unreliable, *, loses: bool) -> Any:
        torch.manual_seed(3)
        with make(2, stages(), engine=engine, recover=10, optimizers=sgd) as pp:
            for step in range(4):
                pp.zero_grad()
                if step == 1:
                    with pytest.raises(RuntimeError):
                        pp.run(data()[0], data()[1][:, 1:])
                    pp.zero_grad()
                if step == 3 and loses:
                    engine.lose("train")
                pp.run(*data(step))
                pp.step()
            return pp.state_dict()

    found, wanted = train(Unreliable(), loses=True), train(Unreliable(), loses=False)
    assert all(torch.equal(value, wanted[name]) for name, value in found.items())


@pytest.mark.parametrize("lost_in", ["optimizer_step", "activations"])
def test_an_evaluation_that_draws_random_numbers_is_made_again(lost_in: str):
    def train(engine: Unreliable, *, loses: bool) -> Any:
        torch.manual_seed(3)
        with make(2, stages(), engine=engine, recover=True, optimizers=sgd) as pp:
            for step in range(3):
                pp.watch(0)
                pp.zero_grad()
                pp.run(*data(step))
                pp.eval(*data(9), keep_mode=True)
                if step == 1 and loses:
                    engine.lose(lost_in)
                seen = torch.cat(pp.activations(0))
                pp.step()
                yield seen
            yield from pp.state_dict().values()

    torch.manual_seed(3)
    found = list(train(Unreliable(), loses=True))
    wanted = list(train(Unreliable(), loses=False))
    assert all(map(torch.equal, found, wanted))


def test_a_checkpoint_that_is_gone_is_not_needed_again(tmp_path: Path):
    def train(engine: Unreliable, path: Path) -> Any:
        torch.manual_seed(3)
        with make(2, stages(), engine=engine, recover=10, optimizers=sgd) as pp:
            pp.run(*data())
            pp.save_checkpoint(path)
            pp.step()
            pp.load_checkpoint(path)
            shutil.rmtree(path)
            pp.run(*data())
            engine.lose("train")
            pp.run(*data())
            return pp.gradients()

    found = train(Unreliable(), tmp_path / "one")
    assert found["stages.0.0.0.weight"] is not None


def test_more_than_true_or_a_number_is_refused():
    with pytest.raises(ParameterError, match="recover must be True, False, or a number of steps"):
        make(2, stages(), recover="yes")


def test_a_rank_that_is_lost_between_two_actions_is_the_end():
    engine = Unreliable()
    with make(2, linear_tanh(2), engine=engine) as pp:
        stepping = pp.start(*data())
        engine.lose("act")
        with pytest.raises(RankLost, match="rank 1: its process 123 was killed by SIGKILL"):
            stepping.run("0F0")
        with pytest.raises(ExecutionError, match="cannot be used any more: rank 1: its process"):
            pp.run(*data())
        assert engine.is_closed
