from pathlib import Path

import pytest

from fullbore.errors import FormatError, ParameterError
from fullbore.formats import FORMATS, dumps, load, loads, save
from fullbore.ir import Form, Placement

SCHEDULE = loads("0F0,0I0,0W0\n1F0,1B0\n", format="csv")


@pytest.mark.parametrize("ending", ["csv", "json", "txt", "CSV"])
def test_the_ending_says_the_format(tmp_path: Path, ending: str):
    path = tmp_path / f"mine.{ending}"
    save(SCHEDULE, path)
    assert path.read_text("utf-8") == dumps(SCHEDULE, format=ending.lower())
    assert load(path) == SCHEDULE
    assert load(str(path)) == SCHEDULE


@pytest.mark.parametrize("ending", ["csv", "txt"])
def test_the_dialect_is_named(tmp_path: Path, ending: str):
    path = tmp_path / f"mine.{ending}"
    save(SCHEDULE, path, dialect="monarch")
    assert "1BW0" in path.read_text("utf-8")
    assert load(path, dialect="monarch") == SCHEDULE
    with pytest.raises(FormatError):
        load(path)


@pytest.mark.parametrize("name", ["mine", "mine.yaml", ".csv", "csv"])
def test_other_endings_are_refused(tmp_path: Path, name: str):
    with pytest.raises(ParameterError, match=r"ending must be one of \.csv, \.json, \.txt"):
        load(tmp_path / name)
    with pytest.raises(ParameterError, match=r"ending must be one of \.csv, \.json, \.txt"):
        save(SCHEDULE, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_missing_file_is_missing(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "mine.csv")


def test_errors_name_the_file(tmp_path: Path):
    path = tmp_path / "mine.csv"
    path.write_text("0F0,0BX0\n", "utf-8")
    with pytest.raises(FormatError) as caught:
        load(path)
    assert (caught.value.file, caught.value.row, caught.value.column) == (str(path), 1, 2)
    assert str(caught.value).startswith(f"{path}, row 1, column 2: no kind of action")


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_other_encodings_are_refused(tmp_path: Path, encoding: str):
    path = tmp_path / "mine.txt"
    path.write_bytes("# name: größer\nrank 0: 0F0\n".encode(encoding))
    with pytest.raises(FormatError, match=r"mine\.txt: not UTF-8 text"):
        load(path)


def test_nothing_is_written_where_the_dialect_cannot(tmp_path: Path):
    path = tmp_path / "mine.csv"
    save(SCHEDULE, path)
    overlapped = loads("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", format="csv")
    with pytest.raises(FormatError):
        save(overlapped, path, dialect="monarch")
    assert load(path) == SCHEDULE


@pytest.mark.parametrize("name", ["json", "txt"])
@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"num_microbatches": 4}, "num_microbatches is 1 here, 4 was asked for"),
        ({"form": Form.LOWERED}, "form is compute here, lowered was asked for"),
        ({"placement": Placement((1, 0))}, "placement is 0 1 here, 1 0 was asked for"),
    ],
)
def test_a_file_and_its_reader_must_agree(name: str, claim: dict, message: str):
    text = dumps(SCHEDULE, format=name)
    with pytest.raises(FormatError, match=message):
        loads(text, format=name, **claim)
    agreed = {key: getattr(SCHEDULE, key) for key in claim}
    assert loads(text, format=name, **agreed) == SCHEDULE


def test_an_unknown_format_is_named():
    with pytest.raises(ParameterError, match="no format 'yaml'; there are csv, json, txt"):
        loads("", format="yaml")
    with pytest.raises(ParameterError, match="no format 'yaml'"):
        dumps(SCHEDULE, format="yaml")


@pytest.mark.parametrize("name", FORMATS)
def test_an_unknown_dialect_is_named(name: str):
    with pytest.raises(ParameterError, match="no dialect 'jax'"):
        loads("", format=name, dialect="jax")
    with pytest.raises(ParameterError, match="no dialect 'jax'"):
        dumps(SCHEDULE, format=name, dialect="jax")


@pytest.mark.parametrize("given", [None, "1f1b", {}, SCHEDULE.programs], ids=type)
def test_only_schedules_are_written(tmp_path: Path, given):
    for write in (lambda: dumps(given, format="csv"), lambda: save(given, tmp_path / "no.csv")):
        with pytest.raises(ParameterError, match=f"takes a Schedule, got a {type(given).__name__}"):
            write()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [None, b"0F0", Path("mine.csv"), {}], ids=type)
def test_only_text_is_read(given):
    with pytest.raises(ParameterError, match=r"takes text, got .*; load takes a path"):
        loads(given, format="csv")
