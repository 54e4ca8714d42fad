from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from fullbore.errors import ParameterError
from fullbore.ir import Action, Form, Kind, Placement, Schedule, fuse

F, B = Action(0, Kind.F, 0), Action(0, Kind.B, 0)
ONE = Schedule(((F, B),), Placement.linear(1), 1)


def test_sizes():
    overlap = fuse(Kind.OVERLAP_F_B, F, B)
    schedule = Schedule(((F, overlap), (B,)), Placement.vee(2), 3)
    assert (schedule.num_ranks, schedule.num_stages, schedule.num_actions) == (2, 4, 3)
    assert list(schedule.actions()) == [(0, 0, F), (0, 1, overlap), (1, 0, B)]


def test_labels_take_no_part_in_equality():
    named = Schedule(ONE.programs, ONE.placement, 1, name="gpipe", parameters=(("num_ranks", 1),))
    assert named == ONE
    assert hash(named) == hash(ONE)


@pytest.mark.parametrize(
    "other",
    [
        Schedule(((B, F),), Placement.linear(1), 1),
        Schedule(((F, B),), Placement((0, 0)), 1),
        Schedule(((F, B),), Placement.linear(1), 2),
        Schedule(((F, B),), Placement.linear(1), 1, Form.LOWERED),
        Schedule(((F, B),), Placement.linear(1), 1, forward_only=True),
    ],
)
def test_everything_else_does(other: Schedule):
    assert other != ONE


def test_other_programs_keep_the_rest():
    named = Schedule(ONE.programs, ONE.placement, 1, name="mine")
    found = named.with_programs([[B, F]], form=Form.LOWERED)
    assert (found.programs, found.form, found.name) == (((B, F),), Form.LOWERED, "mine")
    assert named.programs == ((F, B),)
    assert found.with_programs([[F]]).form is Form.LOWERED


def test_nothing_can_be_changed():
    with pytest.raises(FrozenInstanceError):
        ONE.num_microbatches = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("programs", "microbatches", "message"),
    [
        (((F,), (B,)), 1, "2 programs, but the placement names 1 ranks"),
        ((), 1, "0 programs, but the placement names 1 ranks"),
        (((F,),), 0, "num_microbatches must be at least 1, got 0"),
        ({0: (F,)}, 1, "one tuple of actions for each rank"),
        ([(F,)], 1, "one tuple of actions for each rank"),
        (([F],), 1, "one tuple of actions for each rank"),
        ((None,), 1, "one tuple of actions for each rank"),
        (None, 1, "one tuple of actions for each rank"),
        ((("0F0",),), 1, "programs hold Actions, not str; parse_action makes"),
        ((((0, Kind.F, 0, ()),),), 1, "programs hold Actions, not tuple"),
        (((Action(0, "F", 0),),), 1, "kind is a Kind, .* not str"),  # type: ignore[arg-type]
        (((Action(0, 0, 0),),), 1, "kind is a Kind, .* not int"),  # type: ignore[arg-type]
        (((Action(0, Kind.F, 0.0),),), 1, "microbatch is a whole number, not float"),  # type: ignore[arg-type]
        (((Action("0", Kind.F, 0),),), 1, "stage is a whole number, not str"),  # type: ignore[arg-type]
        (((Action(0, Kind.F, True),),), 1, "microbatch is a whole number, not bool"),
        (((Action(0, Kind.F, 0, [F]),),), 1, "parts is a tuple of Actions, not list"),  # type: ignore[arg-type]
        (((fuse(Kind.OVERLAP_F_B, F, (0, 1)),),), 1, "programs hold Actions, not tuple"),  # type: ignore[arg-type]
        (
            ((fuse(Kind.OVERLAP_F_B, fuse(Kind.OVERLAP_F_B, Action(0, Kind.F, None))),),),  # type: ignore[arg-type]
            1,
            "microbatch is a whole number, not NoneType",
        ),
        (((F,),), 2.0, "num_microbatches must be of type int, got 2.0"),
        (((F,),), "2", "num_microbatches must be of type int, got '2'"),
        (((F,),), True, "num_microbatches must be of type int, got True"),
    ],
)
def test_what_is_no_schedule(programs: Any, microbatches: Any, message: str):
    with pytest.raises(ParameterError, match=message):
        Schedule(programs, Placement.linear(1), microbatches)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("placement", (0,)),
        ("form", "lowered"),
        ("forward_only", "false"),
        ("name", None),
        ("parameters", {"num_ranks": 1}),
    ],
)
def test_what_has_another_type_is_refused(name: str, value: Any):
    with pytest.raises(ParameterError, match=f"schedule: {name} must be of type .*, got "):
        replace(ONE, **{name: value})


@pytest.mark.parametrize("pair", [("lr", 0.5), ("a", None), (1, 2), ("a", 1, 2), ["a", 1], "ab"])
def test_parameters_are_what_a_file_can_hold(pair: Any):
    with pytest.raises(ParameterError, match="pairs of a name and a whole number or text"):
        replace(ONE, parameters=(pair,))
