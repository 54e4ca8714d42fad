"""What holds for every pass."""

from dataclasses import FrozenInstanceError, fields, is_dataclass

import pytest
from tests.passes.samples import lines

from fullbore.errors import ParameterError, PassError
from fullbore.ir import Form, Schedule
from fullbore.passes import PASSES, InsertUnshard, Pass, lower
from fullbore.schedules import build

EVERY = list(PASSES.values())
ZBV = build("zbv", num_ranks=3, num_microbatches=4)
IN_FORM = {Form.COMPUTE: ZBV, Form.LOWERED: lower(ZBV, shard=True)}


def test_the_table_is_complete():
    ours = [each for each in Pass.__subclasses__() if each.__module__.startswith("fullbore.")]
    assert set(EVERY) == set(ours)
    assert all(PASSES[each.name] is each for each in EVERY)


@pytest.mark.parametrize("each", EVERY)
def test_a_pass_is_a_frozen_dataclass(each: type[Pass]):
    assert is_dataclass(each)
    assert each() == each()
    with pytest.raises(FrozenInstanceError):
        each().name = "other"  # type: ignore[misc]
    assert {"name", "takes", "gives"}.isdisjoint(field.name for field in fields(each))


@pytest.mark.parametrize("each", EVERY)
def test_only_the_forms_that_it_takes(each: type[Pass]):
    for form, schedule in IN_FORM.items():
        if form in each.takes:
            assert each()(schedule).form is (each.gives or form)
            continue
        with pytest.raises(PassError) as caught:
            each()(schedule)
        assert str(caught.value) == (
            f"{each.name} on zbv_zero_bubble: takes {each.takes[0].name} form, this is {form.name}"
        )


@pytest.mark.parametrize("each", EVERY)
def test_name_placement_and_parameters_are_kept(each: type[Pass]):
    for form in each.takes:
        before = IN_FORM[form]
        after = each()(before)
        assert (after.name, after.parameters) == (before.name, before.parameters)
        assert (after.placement, after.num_microbatches) == (before.placement, 4)


@pytest.mark.parametrize("each", EVERY)
@pytest.mark.parametrize("wrong", [{0: ["0F0"]}, [["0F0"]], None, "zbv"], ids=repr)
def test_anything_but_a_schedule_is_refused(each: type[Pass], wrong: object):
    with pytest.raises(ParameterError, match=f"{each.name}: takes a Schedule, got a "):
        each()(wrong)  # type: ignore[arg-type]


def test_an_unnamed_schedule_is_called_schedule():
    unnamed = Schedule(ZBV.programs, ZBV.placement, 4)
    assert lines(unnamed) == lines(ZBV)
    with pytest.raises(PassError, match=r"^insert_unshard on schedule: "):
        InsertUnshard()(InsertUnshard()(unnamed))
