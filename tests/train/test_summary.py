"""What is said of a run, without running one."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from fullbore.sim import Report
from fullbore.train.compare import Difference
from fullbore.train.messages import Outcome, Record
from fullbore.train.progress import Progress
from fullbore.train.settings import Recipe, Settings
from fullbore.train.source import find_schedule
from fullbore.train.summary import complaint, facts, lines

pytestmark = pytest.mark.torch

SCHEDULE = find_schedule("1f1b", ranks=1, stages_per_rank=None, microbatches=None)
RIGHT = Difference("w", 0.0, 0.0, True)
NEAR = Difference("v", 1e-9, 1e-7, False)
WRONG = Difference("u", 0.5, 0.1, True)


def progress(
    *losses: float, save: Path | None = None, difference: Difference | None = None
) -> Progress:
    found = Progress(Settings(Recipe(), SCHEDULE, 9, save=save), first_step=2)
    for step, loss in enumerate(losses, start=3):
        last = Record(step, loss, 0.5, difference=difference, compared=4)
        found.add([Record(step, None, 1.0, difference=RIGHT, compared=3), last])
    return found


def test_records_of_all_processes_add_up():
    found = progress(5.0, 4.0)
    assert (found.step, found.steps_done, found.first_loss, found.loss) == (4, 2, 5.0, 4.0)
    assert found.seconds == 2.0
    assert found.tokens_per_second == 8 * 128
    assert found.compared == 14


def test_the_worst_difference_and_its_step_are_kept():
    found = progress(5.0, difference=NEAR)
    found.add([Record(4, 4.0, 1.0, difference=RIGHT)])
    assert (found.difference, found.difference_step) == (NEAR, 3)
    found.add([Record(5, 3.0, 1.0, difference=WRONG)])
    assert (found.difference, found.difference_step) == (WRONG, 5)


def test_words():
    work, check, loss = lines(progress(5.0, 4.0))
    assert work.startswith(
        "1f1b: 1 rank, 1 stage, 8 microbatches, 0.0% bubble at unit costs; 2 steps"
    )
    assert check == (
        "check: all 14 losses and gradients equal the unpipelined model's, bit for bit "
        "(largest difference 0)"
    )
    assert loss == "loss: 5.000 at step 3, 4.000 at step 4"
    assert (
        "the largest difference from the unpipelined model is v: 1e-09 (1e-07"
        in lines(progress(5.0, difference=NEAR))[1]
    )
    assert lines(progress()) == []


def test_measured_times_are_told_of_ranks_that_ran_side_by_side():
    found = progress(5.0)
    found.report = Report(4, measured=0.25, predicted=0.24, error=0.04, actions=(), ranks=())
    assert lines(found)[1] == (
        "measured: pipeline steps of median 250.000 ms; predicted 240.000 ms, a step typically "
        "4.0% off, from the costs of their actions"
    )
    assert facts(found)["step_seconds"] == {"measured": 0.25, "predicted": 0.24, "error": 0.04}
    found.settings = replace(found.settings, transport="local")
    assert not any(line.startswith("measured") for line in lines(found))


def test_facts_are_json():
    assert facts(progress(float("nan")))["last_loss"] is None
    assert facts(progress())["check"] is None
    assert facts(progress(5.0, difference=WRONG))["check"] == {
        "equal": False,
        "wrong": True,
        "compared": 7,
        "largest_difference": 0.5,
        "relative": 0.1,
        "where": "u",
        "step": 3,
    }


def complaint_of(found: Progress, outcome: Outcome, *, saved_at: int | None = None) -> str | None:
    found.outcome, found.saved_at = outcome, saved_at
    return complaint(found)


def test_complaints():
    assert complaint_of(progress(5.0), Outcome.FINISHED) is None
    wrong = complaint_of(progress(5.0, difference=WRONG), Outcome.MISMATCH)
    assert wrong is not None
    assert wrong.startswith("step 3: the pipeline differs from the unpipelined model: u: 0.5 (0.1")
    diverged = complaint_of(progress(float("inf")), Outcome.DIVERGED)
    assert diverged == "step 3: the loss is inf; try a smaller --lr"


def test_an_interrupted_run_says_how_to_go_on():
    path = Path("x.pt")
    stop = Outcome.INTERRUPTED
    found = complaint_of(progress(5.0, save=path), stop, saved_at=3)
    assert found == "interrupted after step 3; go on from step 3 with --resume x.pt"
    assert (
        complaint_of(progress(5.0, save=path), stop) == "interrupted after step 3; nothing is saved"
    )
    assert (
        complaint_of(progress(5.0), stop) == "interrupted after step 3; --save would have kept it"
    )


def test_exit_codes_are_those_of_shells():
    assert [outcome.exit_code for outcome in Outcome] == [0, 130, 143, 1, 1]
    assert Outcome.TERMINATED.exit_code == 128 + signal.SIGTERM
