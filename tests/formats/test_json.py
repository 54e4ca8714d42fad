import json

import pytest

from fullbore.errors import FormatError, ParameterError
from fullbore.formats import dumps, loads
from fullbore.ir import Action, Form, Kind, Placement, Schedule

SCHEDULE = Schedule(
    ((Action(0, Kind.F, 0), Action(0, Kind.B, 0)), (Action(1, Kind.F, 0), Action(1, Kind.B, 0))),
    Placement.linear(2),
    1,
    name="gpipe",
    parameters=(("num_ranks", 2), ("num_microbatches", 1)),
)
TEXT = """\
{
  "fullbore": 1,
  "name": "gpipe",
  "parameters": {"num_ranks": 2, "num_microbatches": 1},
  "form": "compute",
  "forward_only": false,
  "num_microbatches": 1,
  "placement": [0, 1],
  "programs": {
    "0": ["0F0", "0B0"],
    "1": ["1F0", "1B0"]
  }
}
"""


def test_one_line_is_one_rank():
    assert dumps(SCHEDULE, format="json") == TEXT
    found = loads(TEXT, format="json")
    assert found == SCHEDULE
    assert (found.name, found.parameters) == (SCHEDULE.name, SCHEDULE.parameters)


def test_what_is_left_out_is_inferred():
    text = '{"fullbore": 1, "programs": {"0": ["0F0", "0SEND_F0"], "1": ["1RECV_F0", "1F0"]}}'
    found = loads(text, format="json")
    assert found.placement == Placement.linear(2)
    assert (found.num_microbatches, found.form, found.forward_only) == (1, Form.LOWERED, True)


def test_a_byte_order_mark_is_no_mistake():
    assert loads("\ufeff" + TEXT, format="json") == SCHEDULE


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("fullbore", None, "fullbore: not 'null'; expected 1, the version of this format"),
        ("fullbore", 2, "fullbore: not '2'; expected 1"),
        ("fullbore", True, "fullbore: not 'true'; expected 1"),
        ("fullbore", "1", "fullbore: not '\"1\"'; expected 1"),
        ("colour", 1, "unknown key 'colour'; expected fullbore, name, parameters, form"),
        ("name", 7, "name: not '7'; expected a string"),
        ("parameters", [], "parameters: not '[]'; expected an object"),
        ("parameters", {"a": 1.5}, "parameters: not \"{'a': 1.5}\"; expected an object of whole"),
        ("form", "raw", "form: not '\"raw\"'; expected compute or lowered"),
        ("form", [], "form: not '[]'; expected compute or lowered"),
        ("forward_only", 0, "forward_only: not '0'; expected true or false"),
        ("num_microbatches", 0, "num_microbatches: not '0'; expected a positive number"),
        ("num_microbatches", True, "num_microbatches: not 'true'; expected a positive number"),
        ("num_microbatches", 1.0, "num_microbatches: not '1.0'; expected a positive number"),
        ("placement", {}, "placement: not '{}'; expected each stage's rank"),
        ("placement", [0, "1"], "placement: not \"[0, '1']\"; expected each stage's rank"),
        ("placement", [], "placement: a schedule needs at least one stage"),
        ("placement", [0, 2], "placement: rank 1 holds no stage"),
        ("placement", [0, -1], "placement: rank -1 is negative"),
        ("placement", [0, 1, 2], "schedule: 2 programs, but the placement names 3 ranks"),
        ("programs", None, "programs: not 'null'; expected the ranks"),
        (
            "programs",
            [["0F0"], ["1F0"]],
            "programs: not \"[['0F0'], ['1F0']]\"; expected the ranks",
        ),
        ("programs", {}, "programs: not '{}'; expected the ranks"),
        ("programs", {"0": "0F0"}, "programs, rank 0: not '\"0F0\"'; expected a list of actions"),
        ("programs", {"0": ["0F0", 3]}, "programs, rank 0, position 1: not '3'; expected a string"),
        ("programs", {"0": ["0F0", "0BW0"]}, "programs, rank 0, position 1: this looks like the"),
        ("programs", {"0": [], "1": ["1F0", ""]}, "programs, rank 1, position 1: not an action"),
        ("programs", {"0": [], "2": []}, "programs: rank 1 is missing or not in its place, where"),
        ("programs", {"1": [], "0": []}, "programs: rank 0 is missing or not in its place, where"),
        ("programs", {"00": []}, "programs: rank 0 is missing or not in its place, where"),
    ],
)
def test_what_is_wrong_with_a_document(key: str, value: object, message: str):
    document = json.loads(TEXT)
    document[key] = value
    with pytest.raises(FormatError) as caught:
        loads(json.dumps(document), format="json", file="mine.json")
    assert str(caught.value).startswith(f"mine.json: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "row 1, column 1: not JSON: Expecting value"),
        ('{\n  "fullbore": 1,\n}', "row 3, column 1: not JSON: "),
        ('{"fullbore": 1} x', "row 1, column 17: not JSON: Extra data"),
        ("[]", "the document: not '[]'; expected an object"),
        ('"0F0"', "the document: not '\"0F0\"'; expected an object"),
        ("NaN", "not JSON: 'NaN'"),
        ('{"fullbore": 1, "fullbore": 1}', "a key twice: 'fullbore'"),
        ('{"fullbore": 1, "programs": {"0": [], "0": []}}', "a key twice: '0'"),
        ("[" * 100_000, "not JSON of a sensible size: too deep"),
        ("1" * 100_000, "not JSON of a sensible size: a number with too many digits"),
        (
            '{"programs": {"0": ["0F0"]}}',
            "a key is missing: 'fullbore'; expected {\"fullbore\": 1, ",
        ),
        ('{"fullbore": 1}', "a key is missing: 'programs'; expected {\"fullbore\": 1, "),
    ],
)
def test_what_is_no_document(text: str, message: str):
    with pytest.raises(FormatError) as caught:
        loads(text, format="json")
    assert str(caught.value).startswith(message)


def test_json_is_in_the_torch_dialect():
    with pytest.raises(ParameterError, match="torch dialect, never in the monarch dialect"):
        loads(TEXT, format="json", dialect="monarch")
    with pytest.raises(ParameterError, match="torch dialect, never in the monarch dialect"):
        dumps(SCHEDULE, format="json", dialect="monarch")
