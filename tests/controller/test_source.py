"""The schedule that the user's words mean."""

from pathlib import Path
from typing import Any

import pytest

import fullbore as fb
from fullbore.controller.source import count_microbatches, find_schedule
from fullbore.errors import FormatError, InvalidSchedule, ParameterError
from fullbore.formats import save
from fullbore.ir import Form
from fullbore.plan import plan
from fullbore.sim import UniformCosts

pytestmark = pytest.mark.torch

NUMBERS: dict[str, int] = {"num_ranks": 2, "num_stages": 4, "num_microbatches": 4}
COSTS = UniformCosts(F=1, I=1, W=1)
SCHEDULE = fb.build("interleaved_1f1b", num_ranks=2, num_microbatches=4)


def found(source: Any, **options: Any) -> Any:
    return find_schedule(source, **NUMBERS, options=options)


def test_a_family_a_schedule_and_a_lowered_one_mean_the_same():
    lowered = fb.lower(SCHEDULE)
    assert found("interleaved_1f1b") == found(SCHEDULE) == found(lowered) == lowered


def test_a_family_takes_its_options():
    wanted = fb.lower(fb.build("interleaved_1f1b", num_ranks=2, num_microbatches=4, round_size=4))
    assert found("interleaved_1f1b", round_size=4) == wanted
    assert found("interleaved_1f1b:round_size=4") == wanted


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_in_any_dialect(tmp_path: Path, kind: type):
    path = tmp_path / "one.csv"
    save(SCHEDULE, path, dialect="monarch")
    known = {"placement": SCHEDULE.placement, "num_microbatches": 4}
    assert found(kind(path), dialect="monarch", **known) == fb.lower(SCHEDULE)
    with pytest.raises(FormatError, match="dialect"):
        found(kind(path))


def test_a_plan_means_its_best_schedule():
    made = plan(num_ranks=2, num_microbatches=4, costs=COSTS, effort=0)
    schedule = made.schedule
    numbers = {"num_ranks": 2, "num_stages": schedule.num_stages, "num_microbatches": 4}
    result = find_schedule(made, **numbers, options={})
    assert result.form is Form.LOWERED
    assert result == fb.lower(schedule)


def test_what_is_not_valid_is_refused():
    broken = SCHEDULE.with_programs([SCHEDULE.programs[0][:-1], SCHEDULE.programs[1]])
    with pytest.raises(InvalidSchedule):
        found(broken)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (SCHEDULE, {"round_size": 2}, "schedule_options are for families and files"),
        (fb.build("1f1b", num_ranks=2, num_microbatches=4), {}, "the schedule has 2 ranks, 2 stag"),
        (3, {}, "schedule must be a family's name, a file, a Schedule or a Plan; got 3"),
    ],
)
def test_what_does_not_fit_is_refused(source: Any, options: dict[str, Any], message: str):
    with pytest.raises(ParameterError, match=message):
        found(source, **options)


def test_microbatches_are_counted():
    assert count_microbatches(8, 2) == 4
