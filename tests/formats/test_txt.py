import pytest

from fullbore.errors import FormatError
from fullbore.formats import dumps, loads
from fullbore.ir import Action, Form, Kind, Placement, Schedule

SCHEDULE = Schedule(
    ((Action(0, Kind.F, 0), Action(0, Kind.I, 0)), (Action(1, Kind.F, 0), Action(1, Kind.B, 0))),
    Placement.linear(2),
    1,
    name="by hand",
    parameters=(("num_ranks", 2), ("source", "a: b")),
)
TEXT = """\
# name: by hand
# parameters: {"num_ranks": 2, "source": "a: b"}
# form: compute
# forward_only: false
# num_microbatches: 1
# placement: 0 1
rank 0: 0F0 0I0
rank 1: 1F0 1B0
"""


def test_one_line_is_one_rank():
    assert dumps(SCHEDULE, format="txt") == TEXT
    found = loads(TEXT, format="txt")
    assert found == SCHEDULE
    assert (found.name, found.parameters) == (SCHEDULE.name, SCHEDULE.parameters)


def test_the_other_dialect_says_so():
    text = dumps(SCHEDULE, format="txt", dialect="monarch")
    assert text.startswith("# dialect: monarch\n")
    assert text.endswith("rank 0: 0F0 0B0\nrank 1: 1F0 1BW0\n")
    assert loads(text, format="txt", dialect="monarch") == SCHEDULE
    with pytest.raises(
        FormatError,
        match="row 1: the dialect is monarch here, torch was asked for; ask for monarch",
    ):
        loads(text, format="txt")


@pytest.mark.parametrize(
    "text",
    [
        "rank 0: 0F0 0I0\nrank 1: 1F0 1B0",
        "\ufeffrank 0: 0F0 0I0\r\nrank 1: 1F0 1B0\r\n",
        "#\n# A remark: capital\n\n rank 0:\t0F0   0I0 \n\n# another\n  rank 1:1F0 1B0\n\n",
        "rank 0: 0F0 0I0\nrank 1: 1F0 1B0\n#form:compute",
        "# form : compute\n# placement: 0, 1\nrank 0: 0F0 0I0\nrank 1: 1F0 1B0",
        "# TODO: a remark\n# see https://example.org\nrank 0: 0F0 0I0\nrank 1: 1F0 1B0",
    ],
)
def test_people_write_it_in_many_ways(text: str):
    assert loads(text, format="txt") == SCHEDULE


def test_headers_say_what_the_actions_do_not():
    text = "# num_microbatches: 3\n# form: lowered\n# placement: 0 1 1 0\nrank 0:\nrank 1: 1F0\n"
    found = loads(text, format="txt")
    assert found.programs == ((), (Action(1, Kind.F, 0),))
    assert (found.num_microbatches, found.form) == (3, Form.LOWERED)
    assert found.placement == Placement.vee(2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no ranks; expected lines such as 'rank 0: 0F0 0B0'"),
        ("# form: compute\n", "no ranks"),
        ("rank 0: 0F0\nrank 2: 1F0", "row 2: not the next rank: 'rank 2: 1F0'; expected 'rank 1:'"),
        ("rank 1: 1F0\nrank 0: 0F0", "row 1: not the next rank: 'rank 1: 1F0'; expected 'rank 0:'"),
        ("rank 0: 0F0\nrank 0: 0F0", "row 2: not the next rank: 'rank 0: 0F0'; expected 'rank 1:'"),
        ("0F0 0B0", "row 1: not the next rank: '0F0 0B0'; expected 'rank 0:'"),
        ("rank 0: 0F0\n  1B0", "row 2: not the next rank: '1B0'; expected 'rank 1:'"),
        ("\nrank 0: 0F0  0BW0", "row 2, column 14: this looks like the monarch dialect"),
        ("rank 0: 0F0, 0B0", "row 1, column 9: not an action: '0F0,'"),
        ("# Placement: 0 1\nrank 0: 0F0", "row 1: unknown header 'Placement'; expected dialect"),
        ("# num-microbatches: 2\nrank 0: 0F0", "row 1: unknown header 'num-microbatches'"),
        ("# Forward only: true\nrank 0: 0F0", "row 1: unknown header 'Forward only'"),
        ("# forms: compute\nrank 0: 0F0", "row 1: unknown header 'forms'; expected dialect, name"),
        ("# form: compute\n# form: b\n", "row 2: a header twice: 'form'"),
        ("# form: raw\nrank 0: 0F0", "row 1: form: not '\"raw\"'; expected compute or lowered"),
        (
            "\n# forward_only: True\nrank 0: 0F0",
            "row 2: forward_only: not 'True'; expected true or false",
        ),
        ("# num_microbatches: two\n", "row 1: num_microbatches: not 'two'; expected a positive"),
        ("# num_microbatches: 0\nrank 0: 0F0", "row 1: num_microbatches: not '0'; expected a"),
        ("# placement: 0 x\nrank 0: 0F0", "row 1: placement: not '0 x'; expected each stage"),
        ("# placement: 0 2\nrank 0: 0F0", "row 1: placement: rank 1 holds no stage"),
        ("# parameters: 3\nrank 0: 0F0", "row 1: parameters: not '3'; expected an object"),
        ("# dialect: jax\nrank 0: 0F0", "row 1: the dialect is jax here, torch was asked for"),
    ],
)
def test_what_is_wrong_with_a_text(text: str, message: str):
    with pytest.raises(FormatError) as caught:
        loads(text, format="txt")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", ["two\nlines", " padded", "bell\a"])
def test_a_name_that_is_no_line_is_refused(name: str):
    schedule = Schedule(SCHEDULE.programs, SCHEDULE.placement, 1, name=name)
    with pytest.raises(FormatError, match="a name that plain text cannot hold"):
        dumps(schedule, format="txt")
