"""What options mean."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

import fullbore as fb
from fullbore.errors import FormatError, InvalidSchedule, ParameterError
from fullbore.train.membership import Membership
from fullbore.train.settings import ModelSize, Planning, Recipe, Settings
from fullbore.train.source import find_recipe, find_schedule

GIVEN = {"ranks": None, "stages_per_rank": None, "microbatches": None}


def schedule(**changes: int) -> fb.Schedule:
    return find_schedule("1f1b", **{**GIVEN, **changes})


def test_a_family_has_defaults():
    assert find_schedule("zbv", **GIVEN) == fb.build("zbv", num_ranks=2, num_microbatches=8)
    found = find_schedule("interleaved1f1b", ranks=3, stages_per_rank=4, microbatches=5)
    assert (found.num_ranks, found.num_stages, found.num_microbatches) == (3, 12, 5)
    limited = find_schedule("zb:limit=1", **GIVEN)
    assert limited == fb.build("zb", num_ranks=2, num_microbatches=8, limit=1)


@pytest.mark.parametrize("ending", [".csv", ".json", ".txt"])
def test_a_file_says_it_all(tmp_path: Path, ending: str):
    path = tmp_path / f"mine{ending}"
    fb.save(schedule(ranks=3), path)
    found = find_schedule(str(path), **GIVEN)
    assert found == schedule(ranks=3)
    assert found.name in ("1f1b", str(path))
    assert find_schedule(str(path), ranks=3, stages_per_rank=None, microbatches=8) == found


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"ranks": 2}, "--ranks is 2, but .* is for 3"),
        ({"microbatches": 4}, "--microbatches is 4, but .* is for 8"),
        ({"stages_per_rank": 1}, "--stages-per-rank is for families"),
    ],
)
def test_options_that_contradict_the_file_are_refused(tmp_path: Path, option, message: str):
    path = tmp_path / "mine.json"
    fb.save(schedule(ranks=3), path)
    with pytest.raises(ParameterError, match=message):
        find_schedule(str(path), **{**GIVEN, **option})


def test_files_without_a_valid_schedule_are_refused(tmp_path: Path):
    path = tmp_path / "mine.csv"
    with pytest.raises(FormatError, match="No such file"):
        find_schedule(str(path), **GIVEN)
    path.write_text("0B0,0F0\n")
    with pytest.raises(InvalidSchedule):
        find_schedule(str(path), **GIVEN)


def test_a_recipe_has_defaults_that_options_replace():
    found = find_recipe(None, layers=3, batch_size=16, seed=None)
    assert found == Recipe(ModelSize(layers=3), batch_size=16)


def test_a_resumed_recipe_is_the_saved_one_where_nothing_else_is_said():
    saved = Recipe(ModelSize(layers=3, width=64), batch_size=16, learning_rate=0.5, seed=7)
    assert find_recipe(saved, layers=None, seed=None) == saved
    assert find_recipe(saved, layers=3, learning_rate=0.1) == replace(saved, learning_rate=0.1)
    with pytest.raises(ParameterError, match="--width is 32, but the checkpoint's model has 64"):
        find_recipe(saved, width=32)
    with pytest.raises(ParameterError, match="--sequence-length is 9"):
        find_recipe(saved, sequence_length=9)


@pytest.mark.parametrize("name", ["layers", "width", "heads", "sequence_length"])
def test_sizes_are_positive(name: str):
    with pytest.raises(ParameterError, match=f"--{name.replace('_', '-')} must be at least 1"):
        find_recipe(None, **{name: 0})


def test_heads_share_the_width_evenly():
    with pytest.raises(ParameterError, match="--width must be a multiple of --heads; got 10 and 4"):
        ModelSize(width=10)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"after": 0}, "--plan-after must be at least 1; got 0"),
        ({"deadline": 0.0}, "--plan-deadline must be more than 0 seconds; got 0"),
        ({"deadline": math.nan}, "--plan-deadline must be more than 0 seconds; got nan"),
    ],
)
def test_planning_takes_steps_and_time(wrong: dict, message: str):
    with pytest.raises(ParameterError, match=message):
        Planning(**wrong)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_the_learning_rate_is_a_positive_number(rate: float):
    with pytest.raises(ParameterError, match="--lr must be a positive number"):
        Recipe(learning_rate=rate)


def test_every_microbatch_needs_a_row():
    with pytest.raises(ParameterError, match=r"--batch-size .*microbatches, 9; got 8"):
        Settings(Recipe(), schedule(microbatches=9), 1)


def test_a_schedule_without_backward_cannot_train():
    with pytest.raises(ParameterError, match="runs no backward"):
        Settings(Recipe(), find_schedule("forward_only", **GIVEN), 1)


def test_when_to_evaluate_and_save():
    settings = Settings(Recipe(), schedule(), 7, eval_every=3, save=Path("x.pt"), save_every=2)
    assert [s for s in range(1, 8) if settings.evaluates_after(s)] == [3, 6, 7]
    assert [s for s in range(1, 8) if settings.saves_after(s)] == [2, 4, 6]
    rare = Settings(Recipe(), schedule(), 7)
    assert [s for s in range(1, 8) if rare.evaluates_after(s) or rare.saves_after(s)] == [7]


def test_a_process_of_torchrun_knows_its_place(monkeypatch: pytest.MonkeyPatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert Membership.find() is None
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert Membership.find() is None
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1234")
    assert Membership.find() == Membership(rank=3, size=4, local_rank=1)
