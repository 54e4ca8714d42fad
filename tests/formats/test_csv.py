import pytest

from fullbore.errors import FormatError
from fullbore.formats import dumps, loads
from fullbore.ir import Action, Form, Kind, Placement, Schedule

F, B = Kind.F, Kind.B
TEXT = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
SCHEDULE = Schedule(
    (
        (Action(0, F, 0), Action(0, F, 1), Action(0, B, 0), Action(0, B, 1)),
        (Action(1, F, 0), Action(1, B, 0), Action(1, F, 1), Action(1, B, 1)),
    ),
    Placement((0, 1)),
    2,
)


def test_one_row_is_one_rank():
    assert loads(TEXT, format="csv") == SCHEDULE
    assert dumps(SCHEDULE, format="csv") == TEXT


@pytest.mark.parametrize(
    "text",
    [
        TEXT.rstrip("\n"),
        "\ufeff" + TEXT,
        TEXT.replace("\n", "\r\n"),
        TEXT.replace("\n", "\r"),
        TEXT + "\n\n",
        TEXT + ",,,\r\n , ,\n",
        TEXT.replace("\n", ",,,\n"),
        TEXT.replace("0F1,", ",, 0F1 ,,"),
        "0F0,0F1,0B0,0B1\n,,,1F0,1B0,1F1,1B1",
        TEXT.replace("0F1", '"0F1"'),
    ],
)
def test_what_spreadsheets_and_generators_do_to_a_file(text: str):
    assert loads(text, format="csv") == SCHEDULE


def test_a_cell_may_stand_for_two_actions_in_the_monarch_dialect():
    found = loads("0F0,0BW0_rs,0UNSHARD\n", format="csv", dialect="monarch")
    assert [str(action) for action in found.programs[0]] == [
        "0F0",
        "0B0",
        "0REDUCE_GRAD",
        "0UNSHARD",
    ]
    assert dumps(found, format="csv", dialect="monarch") == "0F0,0BW0_rs,0UNSHARD\n"
    assert dumps(found, format="csv") == "0F0,0B0,0REDUCE_GRAD,0UNSHARD\n"


@pytest.mark.parametrize(
    ("text", "placement"),
    [
        ("0F0,2F0\n1F0,3F0\n", Placement.loop(2, 2)),
        ("0F0,3F0\n1F0,2F0\n", Placement.vee(2)),
        ("1F0\n0F0\n", Placement((1, 0))),
        ("0F0\n(1F0;1B0)OVERLAP_F_B\n", Placement.linear(2)),
        ("0F0,0SEND_F0\n1RECV_F0\n", Placement.linear(2)),
    ],
)
def test_the_placement_is_where_stages_appear(text: str, placement: Placement):
    assert loads(text, format="csv").placement == placement


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("0F0,0I0,0W0\n", Form.COMPUTE),
        ("(0F0;0B0)OVERLAP_F_B\n", Form.COMPUTE),
        ("0F0,0REDUCE_GRAD\n", Form.LOWERED),
        ("0UNSHARD,0F0\n", Form.LOWERED),
        ("0F0,0SEND_F0\n1F0", Form.LOWERED),
        ("0F0,(0SEND_F0;0RECV_B0)SEND_F_RECV_B\n1F0\n", Form.LOWERED),
    ],
)
def test_the_form_is_compute_if_all_actions_are(text: str, form: Form):
    assert loads(text, format="csv").form is form


@pytest.mark.parametrize(
    ("text", "forward_only"),
    [("0F0\n", True), ("0F0,0W0\n", False), ("0F0,(0F1;0I0)OVERLAP_F_B\n", False)],
)
def test_without_any_backward_it_is_forward_only(text: str, forward_only: bool):
    assert loads(text, format="csv").forward_only is forward_only


def test_microbatches_go_up_to_the_highest():
    assert loads("0F0,(0F7;0B3)OVERLAP_F_B\n", format="csv").num_microbatches == 8


def test_what_the_caller_knows_is_not_inferred():
    found = loads(
        "0F0\n1F0\n",
        format="csv",
        num_microbatches=5,
        form=Form.LOWERED,
        placement=Placement.vee(2),
    )
    assert (found.num_microbatches, found.form) == (5, Form.LOWERED)
    assert found.placement == Placement.vee(2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no actions; expected one row for each rank"),
        ("\n,,\n \n", "no actions; expected one row for each rank"),
        ("\n0F0\n", "row 1: a blank row before the first rank; expected the actions"),
        ("0F0\n,,\n\n1F0\n", "row 2: a blank row between ranks; expected the actions of rank 1"),
        ("0F0,0B0\n1F0,,1B0x\n", "row 2, column 3: not an action: '1B0x'; expected 2F0"),
        ("0F0,0B0\n1F0, 1BW0 \n", "row 2, column 2: this looks like the monarch dialect"),
        ("rank,step\n0,0F0\n", "row 1, column 1: a header: 'rank,step'; expected no header"),
        (
            "0F0;0B0;;\n",
            "row 1, column 1: ';' between actions: '0F0;0B0;;'; expected a comma between cells",
        ),
        ("0F0,0B0\n1F0\t1B0\n", "row 2, column 1: a tab between actions: '1F0\\t1B0'; expected"),
        ("0F0 0B0\n", "row 1, column 1: a blank between actions: '0F0 0B0'; expected a comma"),
        ("step 0,step 1\n0F0,0B0\n", "row 1, column 1: a header: 'step 0,step 1'; expected no"),
        (",0,1\n,0F0,0B0\n", "row 1, column 2: a header: ',0,1'; expected no header"),
        ("rank 0,0F0,0B0\n", "row 1, column 1: a name before the actions: 'rank 0'; expected"),
        ("0F0,0B0\n1,1F0,1B0\n", "row 2, column 1: a name before the actions: '1'; expected"),
        ("0FF0,0BB0\n", "row 1, column 1: no kind of action is called 'FF'"),
        ("0F0;" * 50_000, "row 1, column 1: ';' between actions: '0F0;0F0;"),
        ("0F0,(0F1;0B0),0B1\n", "row 1, column 2: no fused action is called ''"),
        ('0F0\n1F0,"1B0\n', "row 2: not CSV, unexpected end of data: '1F0,\"1B0'"),
        ('0F0\n"1F0"x\n', "row 2: not CSV, ',' expected after '\"': '\"1F0\"x'"),
        ("0F0\n1F0,1F" + "1" * 200_000, "row 2, column 2: a cell this long is no action: '1F11111"),
        (
            "0F0\n2F0\n",
            "placement: stage 1 appears on no rank although stage 2 does; stages are 0..S-1. "
            "Add the actions of stage 1, or renumber the stages above it",
        ),
        ("1F0\n", "placement: stage 0 appears on no rank although stage 1 does"),
        ("999999999F0\n", "placement: stage 0 appears on no rank"),
        ("0F0,1F0\n1B0\n", "placement: rank 1 holds no stage of its own"),
        ("0UNSHARD\n", "no action has a microbatch"),
    ],
)
def test_what_is_wrong_with_a_csv(text: str, message: str):
    with pytest.raises(FormatError) as caught:
        loads(text, format="csv", file="mine.csv")
    assert str(caught.value).startswith(
        f"mine.csv{', ' if message[:3] == 'row' else ': '}{message}"
    )


def test_a_wrong_placement_is_a_format_error():
    with pytest.raises(FormatError, match="2 programs, but the placement names 3 ranks"):
        loads("0F0\n1F0\n", format="csv", placement=Placement.linear(3))


@pytest.mark.parametrize(
    ("schedule", "lost"),
    [
        (Schedule(((), (Action(0, F, 0),)), Placement((1, 0)), 1), "rank 0 has no action"),
        (Schedule(((Action(1, F, 0),),), Placement((0, 0)), 1), "stage 0 appears on no rank"),
        (
            Schedule(((Action(0, F, 0),),), Placement((0, 0)), 1, forward_only=True),
            "placement would be 0 instead of 0 0",
        ),
        (
            Schedule(((Action(0, F, 0),),), Placement((0,)), 3, forward_only=True),
            "num_microbatches would be 1 instead of 3",
        ),
        (
            Schedule(((Action(0, F, 0),),), Placement((0,)), 1, Form.LOWERED, forward_only=True),
            "form would be compute instead of lowered",
        ),
        (
            Schedule(((Action(0, F, 0),),), Placement((0,)), 1),
            "forward_only would be True instead of False",
        ),
    ],
)
def test_a_csv_that_would_be_read_differently_is_not_written(schedule: Schedule, lost: str):
    with pytest.raises(FormatError, match="a CSV cannot hold this schedule") as caught:
        dumps(schedule, format="csv")
    assert lost in str(caught.value)
    assert loads(dumps(schedule, format="json"), format="json") == schedule
    assert loads(dumps(schedule, format="txt"), format="txt") == schedule


def test_an_action_that_the_dialect_lacks_is_named():
    schedule = loads("0F0\n1F0,(1F1;1B0)OVERLAP_F_B\n", format="csv")
    with pytest.raises(FormatError, match=r"^rank 1, step 1: \(1F1;1B0\)OVERLAP_F_B has no text"):
        dumps(schedule, format="csv", dialect="monarch")
