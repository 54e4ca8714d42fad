import pickle
from typing import Any

import pytest

from fullbore import errors
from fullbore.errors import ExecutionError, FormatError, FullboreError, InvalidSchedule


@pytest.mark.parametrize(
    ("name", "bases"),
    [
        ("FormatError", (FullboreError, ValueError)),
        ("ParameterError", (FullboreError, ValueError)),
        ("InvalidSchedule", (FullboreError, ValueError)),
        ("PassError", (FullboreError,)),
        ("MissingExtra", (FullboreError, ImportError)),
        ("ExecutionError", (FullboreError,)),
        ("TransportError", (ExecutionError,)),
        ("TransportTimeout", (errors.TransportError,)),
        ("PeerFailed", (errors.TransportError,)),
    ],
)
def test_the_tree(name: str, bases: tuple[type, ...]):
    kind = getattr(errors, name)
    assert kind.__bases__ == bases
    assert f" {name} " in (errors.__doc__ or "")


def test_the_tree_is_complete():
    found = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }
    drawn = {word for word in (errors.__doc__ or "").split() if word.isidentifier()}
    assert found <= drawn


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FormatError("nothing here"), "nothing here"),
        (FormatError("no action:", text="2F\n"), "no action: '2F\\n'"),
        (FormatError("no action:", expected="2F0"), "no action:; expected 2F0"),
        (
            FormatError("bad", text="x", expected="y", file="a.csv", row=2, column=3),
            "a.csv, row 2, column 3: bad 'x'; expected y",
        ),
        (FormatError("bad", row=2), "row 2: bad"),
        (FormatError("bad", text="x" * 100), f"bad '{'x' * 80}... (100 characters)'"),
    ],
)
def test_what_a_format_error_says(error: FormatError, text: str):
    assert str(error) == text


def test_a_place_is_filled_in_once():
    error = FormatError("bad", text="x", row=2).at(file="a.csv", row=9, column=3)
    assert (error.file, error.row, error.column) == ("a.csv", 2, 3)
    assert (error.message, error.text, error.expected) == ("bad", "x", None)
    assert str(error.at(file="b.csv", column=7)) == "a.csv, row 2, column 3: bad 'x'"


@pytest.mark.parametrize("count", [1, 20, 23])
def test_an_invalid_schedule_lists_its_findings(count: int):
    findings: list[Any] = [f"finding {index}" for index in range(count)]
    error = InvalidSchedule(findings, "mine")
    assert error.findings == tuple(findings)
    lines = str(error).splitlines()
    assert lines[0] == f"mine is not valid: {count} finding(s)"
    assert lines[1:21] == [f"  {finding}" for finding in findings[:20]]
    assert lines[21:] == ([f"  ... and {count - 20} more"] if count > 20 else [])


def test_an_execution_error_says_where():
    error = ExecutionError("no answer", rank=0, stage=5, action="5B3")
    assert str(error) == "rank 0, stage 5, action 5B3: no answer"
    bare = ExecutionError("no answer")
    assert str(bare) == "no answer"
    bare.rank = 2
    assert str(bare) == "rank 2: no answer"


@pytest.mark.parametrize(
    "error",
    [
        errors.ParameterError("bad"),
        FormatError("bad", text="x", file="a.csv", row=2),
        ExecutionError("no answer", rank=0, stage=5, action="5B3"),
        errors.PeerFailed("gone", rank=1),
    ],
)
def test_errors_survive_the_way_between_processes(error: FullboreError):
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)
