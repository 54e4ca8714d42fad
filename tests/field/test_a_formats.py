"""Cases A10, A11, A19 and A23: texts and files."""

from pathlib import Path

import pytest

from fullbore.errors import FormatError, ParameterError
from fullbore.formats import format_action, load, loads, parse_action, save
from fullbore.ir import Action, Form, Kind, Placement, Schedule, fuse

LOWERED = """\
0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD
1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1I1,1SEND_B1,1W1,1REDUCE_GRAD,1RESHARD
"""


def padded(text: str) -> str:
    rows = [row.split(",") for row in text.splitlines()]
    width = max(map(len, rows))
    return "".join(",".join([*row, *[""] * (width - len(row))]) + "\n" for row in rows)


@pytest.mark.parametrize(
    "change",
    [
        padded,
        lambda text: text + "\n",
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: "\ufeff" + padded(text).replace("\n", "\r\n") + ",,,\r\n\r\n",
    ],
    ids=["padded", "trailing blank line", "CRLF", "BOM", "all of it"],
)
def test_a10_spreadsheets_may_touch_a_csv(tmp_path: Path, change):
    path = tmp_path / "lowered.csv"
    original = loads(LOWERED, format="csv")
    assert original.form is Form.LOWERED
    path.write_bytes(change(LOWERED).encode("utf-8"))
    assert load(path) == original


@pytest.mark.parametrize(
    "cell",
    ["0F0junk", "3FOO", "0B1.5", "0F-1", "1F0;2F0", "0BW3", "2FULL7", "²F0", "0F" + "9" * 10_000],
    ids=lambda cell: cell[:10],
)
def test_a11_no_cell_is_half_read(tmp_path: Path, cell: str):
    path = tmp_path / "wrong.csv"
    path.write_text(f"0F0,0B0\n1F0,,{cell},1B0\n", "utf-8")
    with pytest.raises(FormatError) as caught:
        load(path)
    error = caught.value
    assert (error.file, error.row, error.column, error.text) == (str(path), 2, 3, cell)
    assert error.expected
    assert str(error).startswith(f"{path}, row 2, column 3: ")
    assert cell[:80] in str(error)
    assert len(str(error)) < len(str(path)) + 300


def test_a11_the_other_dialect_is_recognised():
    with pytest.raises(FormatError, match="looks like the monarch dialect"):
        parse_action("0BW3")
    with pytest.raises(FormatError, match="looks like the torch dialect"):
        parse_action("0I3", dialect="monarch")


def test_a19_monarch_text_keeps_every_digit_and_suffix(tmp_path: Path):
    pair = fuse(Kind.SEND_F_RECV_B, Action(3, Kind.SEND_F, 12), Action(7, Kind.RECV_B, 15))
    assert parse_action("3SEND_F12_7RECV_B15", dialect="monarch") == pair
    assert format_action(pair, dialect="monarch") == "3SEND_F12_7RECV_B15"
    assert parse_action("1BW7", dialect="monarch") == Action(1, Kind.B, 7)
    assert format_action(Action(1, Kind.B, 7), dialect="monarch") == "1BW7"

    text = "0F0\n1BW7\n2W13_rs\n3SEND_F12_7RECV_B15,4F0,5F0,6F0\n"
    before, after = tmp_path / "before.csv", tmp_path / "after.csv"
    before.write_text(text, "utf-8")
    schedule = load(before, dialect="monarch")
    assert schedule.programs[1] == (Action(1, Kind.B, 7),)
    assert schedule.programs[2] == (Action(2, Kind.W, 13), Action(2, Kind.REDUCE_GRAD))
    assert schedule.programs[3][0] == pair
    save(schedule, after, dialect="monarch")
    assert after.read_text("utf-8") == text


@pytest.mark.parametrize("ranks", [("0", "2"), ("1", "0"), ("1",), ("0", "0"), ("0", "01")])
def test_a23_ranks_in_json_have_no_gaps_and_are_in_order(ranks: tuple[str, ...]):
    programs = ", ".join(f'"{rank}": ["{i}F0", "{i}B0"]' for i, rank in enumerate(ranks))
    with pytest.raises(FormatError, match=r"programs: rank \d is missing|a key twice"):
        loads(f'{{"fullbore": 1, "programs": {{{programs}}}}}', format="json")


@pytest.mark.parametrize("ranks", [(0, 2), (1, 0), (1,), (0, 0)])
def test_a23_ranks_in_text_have_no_gaps_and_are_in_order(ranks: tuple[int, ...]):
    text = "".join(f"rank {rank}: {i}F0 {i}B0\n" for i, rank in enumerate(ranks))
    with pytest.raises(FormatError, match=r"row \d: not the next rank"):
        loads(text, format="txt")


def test_a23_a_dict_is_no_list_of_programs():
    program = (Action(0, Kind.F, 0), Action(0, Kind.B, 0))
    with pytest.raises(ParameterError, match="one tuple of actions for each rank"):
        Schedule({0: program, 2: program}, Placement.linear(2), 1)  # type: ignore[arg-type]
