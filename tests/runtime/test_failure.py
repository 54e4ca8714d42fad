"""What is logged and recorded of a failure, and how a stall is put into words."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.reference import WIDTH, linear_tanh, local_pipeline, mse
from torch import Tensor

import fullbore as fb
from fullbore.errors import ParameterError
from fullbore.runtime import LocalTransport, Pipeline, Stage
from fullbore.runtime.failure import describe
from fullbore.runtime.stall import describe_stall, make_marks, read_mark
from fullbore.runtime.transport.position import NOWHERE, Position
from fullbore.view import render_around

pytestmark = pytest.mark.torch

PLAN = fb.lower(fb.build("1f1b", num_ranks=3, num_microbatches=4))


def failing_pipeline(**options) -> Pipeline:
    modules = linear_tanh(3)
    calls: list[int] = []

    def fail(*_: object) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise ValueError("boom")

    modules[1].register_forward_pre_hook(fail)
    return local_pipeline(modules, PLAN, **options)


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(8, WIDTH), torch.randn(8, WIDTH)


def test_a_failure_is_logged_with_the_actions_around_it(caplog, capsys):
    pipe, (x, y) = failing_pipeline(), batch()
    with caplog.at_level(logging.ERROR, "fullbore"), pytest.raises(ValueError, match="boom"):
        pipe.step(x, target=y)
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "rank 1 failed at 1F2: ValueError: boom (rank 1, stage 1, action 1F2)\n"
    )
    _, head, *rows = record.getMessage().splitlines()
    assert head.split() == ["rank", "0", "rank", "1", "rank", "2"]
    assert len(rows) == 11
    assert [row for row in rows if "<<" in row] == [rows[5]]
    assert "1F2 <<" in rows[5]
    assert capsys.readouterr().out == ""


def test_a_wrong_argument_needs_no_picture(caplog):
    pipe, (x, _) = failing_pipeline(), batch()
    with caplog.at_level(logging.ERROR, "fullbore"), pytest.raises(ParameterError, match="target"):
        pipe.step(x)
    assert not caplog.records


def test_what_is_around_an_action_is_shown_beside_what_runs_at_its_time():
    text = render_around(PLAN, 2, 1, steps=1)
    assert text.splitlines() == [
        "rank 0    rank 1    rank 2",
        "0SEND_F1  1RECV_F1  2RECV_F0",
        "0F2       1F1       2F0 <<",
        "0SEND_F2  1SEND_F1  2RECV_F1",
    ]


def test_the_flight_record_is_written_on_failure_only(tmp_path: Path):
    folder = tmp_path / "flight"
    pipe, (x, y) = failing_pipeline(flight_record=folder), batch()
    assert not folder.exists()
    with pytest.raises(ValueError, match="boom"):
        pipe.step(x, target=y)
    (path,) = folder.iterdir()
    assert path.name == "rank-all.jsonl"
    *actions, last = map(json.loads, path.read_text("utf-8").splitlines())
    assert last["error"] == "ValueError: boom (rank 1, stage 1, action 1F2)"
    assert actions[-1]["action"] == "1F2"
    assert (actions[-1]["stage"], actions[-1]["microbatch"]) == (1, 2)
    assert actions[-1]["end"] is None
    assert all(one["start"] <= one["end"] <= last["time"] for one in actions[:-1])
    assert {one["run"] for one in actions} == {3}


def test_the_flight_record_needs_a_folder(tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ParameterError, match="flight_record must be a folder"):
        failing_pipeline(flight_record=file)


def test_a_transport_serves_the_last_pipeline_made_with_it():
    transport, (x, y) = LocalTransport(), batch()
    first, second = (
        Pipeline(
            [Stage(module, index, 3) for index, module in enumerate(linear_tanh(3))],
            PLAN,
            transport=transport,
            loss_fn=mse,
        )
        for _ in range(2)
    )
    second.step(x, target=y)
    with pytest.raises(ParameterError, match="transport was given to another pipeline since"):
        first.step(x, target=y)
    second.step(x, target=y)


def at(rank: int, text: str, waits_for: int = NOWHERE, **rest) -> Position:
    step = list(map(str, PLAN.programs[rank])).index(text)
    (mark,) = make_marks(PLAN, [(rank, step)])
    return Position(mark, 7, waits_for, **rest)


def test_marks_can_be_read():
    steps = [(rank, step) for rank in range(3) for step in range(len(PLAN.programs[rank]))]
    marks = [read_mark(mark) for mark in make_marks(PLAN, steps)]
    assert [(mark.rank, mark.step) for mark in marks] == steps


@pytest.mark.parametrize(
    ("others", "text"),
    [
        (
            {1: at(1, "1F0", 0), 0: at(0, "0F0", seconds=12.3)},
            "rank 2 waits at 2F0 for rank 1, which waits at 1F0 for rank 0, which is at 0F0 "
            "(computing for 12 s)",
        ),
        (
            {1: at(1, "1B0", 2)},
            "rank 2 waits at 2F0 for rank 1, which waits at 1B0 for rank 2: they wait for each "
            "other",
        ),
        (
            {1: at(1, "1F1", trouble="its process is stopped")},
            "rank 2 waits at 2F0 for rank 1, which is at 1F1, and its process is stopped",
        ),
        (
            {1: Position(NOWHERE, 5, NOWHERE, seconds=3)},
            "rank 2 waits at 2F0 for rank 1, which is between two calls of step() or eval() (for "
            "3 s)",
        ),
        (
            {},
            "rank 2 waits at 2F0 for rank 1, which has not made its pipeline, or does not answer",
        ),
    ],
    ids=["chain", "cycle", "stopped", "between", "unknown"],
)
def test_a_stall_is_a_chain_or_a_cycle(others: dict[int, Position], text: str):
    assert describe_stall(2, at(2, "2F0", 1), others, PLAN) == text


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("cannot read caf\udce9.bin"), "ValueError: cannot read caf\\udce9.bin"),
        (Mute(), "Mute: (its text cannot be made: RuntimeError)"),
        (ValueError("x" * 5000), f"ValueError: {'x' * 4000}... (5000 characters)"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_any_error_can_be_described(error: BaseException, text: str) -> None:
    assert describe(error) == text
    error.add_note("rank 1")
    assert describe(error) == f"{text} (rank 1)"
    describe(error).encode()


@pytest.mark.parametrize("error", [ValueError("caf\udce9"), Mute()], ids=["surrogate", "mute"])
def test_an_error_without_a_proper_text_is_the_one_that_is_raised(error: Exception) -> None:
    """And the pipeline can be used again."""
    modules = linear_tanh(2)
    modules[1].register_forward_pre_hook(_raise_once(error))
    pipe = local_pipeline(modules, fb.build("1f1b", num_ranks=2, num_microbatches=2))
    x = torch.randn(4, WIDTH)
    with pytest.raises(type(error)) as caught:
        pipe.step(x, target=x)
    assert caught.value is error
    assert pipe.step(x, target=x).losses is not None


def _raise_once(error: Exception) -> Any:
    errors = [error]

    def hook(*_: object) -> None:
        if errors:
            raise errors.pop()

    return hook
