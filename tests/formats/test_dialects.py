import pytest

from fullbore.errors import FormatError, ParameterError
from fullbore.formats import DIALECTS, format_action, parse_action
from fullbore.formats.dialects import find_dialect, read_text, write_program
from fullbore.ir import KINDS, Action, Kind, fuse

MANY = "7" * 10_000


@pytest.mark.parametrize(
    ("torch", "monarch", "action"),
    [
        ("2F0", "2F0", Action(2, Kind.F, 0)),
        ("0I4", "0B4", Action(0, Kind.I, 4)),
        ("0W4", "0W4", Action(0, Kind.W, 4)),
        ("10B13", "10BW13", Action(10, Kind.B, 13)),
        ("3SEND_F1", "3SEND_F1", Action(3, Kind.SEND_F, 1)),
        ("3RECV_F1", "3RECV_F1", Action(3, Kind.RECV_F, 1)),
        ("3SEND_B12", "3SEND_B12", Action(3, Kind.SEND_B, 12)),
        ("3RECV_B1", "3RECV_B1", Action(3, Kind.RECV_B, 1)),
        ("1UNSHARD", "1UNSHARD", Action(1, Kind.UNSHARD)),
        ("1RESHARD", "1RESHARD", Action(1, Kind.RESHARD)),
        (
            "(3SEND_F12;7RECV_B15)SEND_F_RECV_B",
            "3SEND_F12_7RECV_B15",
            fuse(Kind.SEND_F_RECV_B, Action(3, Kind.SEND_F, 12), Action(7, Kind.RECV_B, 15)),
        ),
        (
            "(3SEND_B12;0RECV_F15)SEND_B_RECV_F",
            "3SEND_B12_0RECV_F15",
            fuse(Kind.SEND_B_RECV_F, Action(3, Kind.SEND_B, 12), Action(0, Kind.RECV_F, 15)),
        ),
    ],
)
def test_both_dialects(torch: str, monarch: str, action: Action):
    assert parse_action(torch) == action
    assert format_action(action) == torch == str(action)
    assert parse_action(monarch, dialect="monarch") == action
    assert format_action(action, dialect="monarch") == monarch


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("1REDUCE_GRAD", Action(1, Kind.REDUCE_GRAD)),
        (
            "(0F7;7B3)OVERLAP_F_B",
            fuse(Kind.OVERLAP_F_B, Action(0, Kind.F, 7), Action(7, Kind.B, 3)),
        ),
        (
            "(7I3;0F7)OVERLAP_F_B",
            fuse(Kind.OVERLAP_F_B, Action(7, Kind.I, 3), Action(0, Kind.F, 7)),
        ),
        ("(7W3)OVERLAP_F_B", fuse(Kind.OVERLAP_F_B, Action(7, Kind.W, 3))),
    ],
)
def test_only_in_the_torch_dialect(text: str, action: Action):
    assert parse_action(text) == action
    assert format_action(action) == text == str(action)
    with pytest.raises(FormatError, match="looks like the torch dialect"):
        parse_action(text, dialect="monarch")
    with pytest.raises(FormatError, match="no text in the monarch dialect"):
        format_action(action, dialect="monarch")


def test_every_kind_is_read_and_written():
    for kind, info in KINDS.items():
        parts = tuple(Action(0, part, 1) for part in info.parts)
        plain = Action(0, kind, 1 if info.has_microbatch else -1)
        action = fuse(kind, *parts) if info.fused else plain
        assert parse_action(format_action(action)) == action


@pytest.mark.parametrize(
    ("dialect", "text", "complaint"),
    [
        ("torch", "", "not an action"),
        ("torch", " 2F0", "not an action"),
        ("torch", "2F0\n", "not an action"),
        ("torch", "0F0junk", "not an action"),
        ("torch", "0B1.5", "not an action"),
        ("torch", "0F-1", "not an action"),
        ("torch", "-1F0", "not an action"),
        ("torch", "²F0", "not an action"),
        ("torch", "0F٣", "not an action"),
        ("torch", "3FOO", "no kind of action is called 'FOO'"),
        ("torch", "3FOO1", "no kind of action is called 'FOO'"),
        ("torch", "2FULL7", "no kind of action is called 'FULL'"),
        ("torch", "2f0", "no kind of action is called 'f'"),
        ("torch", "20", "no kind of action is called ''"),
        ("torch", "1OVERLAP_F_B", "no kind of action is called 'OVERLAP_F_B'"),
        ("torch", "F0", "starts with its stage"),
        ("torch", "0F", "F needs a microbatch"),
        ("torch", "1UNSHARD3", "UNSHARD has no microbatch"),
        ("torch", f"0F{MANY}", "more than 9 digits"),
        ("torch", f"{MANY}F0", "more than 9 digits"),
        ("torch", MANY, "more than 9 digits"),
        ("torch", f"0{'F' * 10_000}0", "no kind of action"),
        ("torch", "1F0;2F0", "';' joins the parts"),
        ("torch", "()OVERLAP_F_B", "without parts"),
        ("torch", "(0F0;)OVERLAP_F_B", "part '': not an action"),
        ("torch", "(0F0;1B0)", "no fused action is called ''"),
        ("torch", "(0F0;1B0)F", "no fused action is called 'F'"),
        ("torch", "(0F0;(0F1;1B0)OVERLAP_F_B)OVERLAP_F_B", "do not nest"),
        ("torch", "(0F0;1SEND_B0)OVERLAP_F_B", "cannot be made of these parts"),
        ("torch", "(2RECV_B0;1SEND_F0)SEND_F_RECV_B", "cannot be made of these parts"),
        ("torch", "(1SEND_F0)SEND_F_RECV_B", "cannot be made of these parts"),
        ("torch", "(0F0;1B0)OVERLAP_F_B3", "no fused action is called 'OVERLAP_F_B3'"),
        ("torch", "(" * 10_000, "not an action"),
        ("torch", "0BW3", "looks like the monarch dialect"),
        ("torch", "2W3_rs", "looks like the monarch dialect"),
        ("torch", "3SEND_F12_7RECV_B15", "looks like the monarch dialect"),
        ("torch", "(0F0;1BW0)OVERLAP_F_B", "part '1BW0': this looks like the monarch dialect"),
        ("monarch", "0I4", "looks like the torch dialect"),
        ("monarch", "2F3_rs", "not an action"),
        ("monarch", "2W_rs", "no kind of action is called 'W_rs'"),
        ("monarch", "2UNSHARD_rs", "no kind of action"),
        ("monarch", "3SEND_F12_7RECV_F15", "not an action"),
        ("monarch", "3SEND_F1_RECV_B0", "not an action"),
        ("monarch", "3SEND_F12_7RECV_B15_rs", "not an action"),
        ("monarch", "2BW", "BW needs a microbatch"),
    ],
)
def test_what_is_wrong_with_a_text(dialect: str, text: str, complaint: str):
    with pytest.raises(FormatError) as caught:
        parse_action(text, dialect=dialect)
    assert complaint in str(caught.value)
    assert caught.value.text == text
    assert caught.value.expected == DIALECTS[dialect].example
    assert len(str(caught.value)) < 400


def test_a_reduced_text_is_two_actions():
    pair = (Action(2, Kind.W, 13), Action(2, Kind.REDUCE_GRAD))
    assert read_text("2W13_rs", find_dialect("monarch")) == pair
    with pytest.raises(FormatError, match=r"2W13 and 2REDUCE_GRAD .*'2W13_rs'"):
        parse_action("2W13_rs", dialect="monarch")


@pytest.mark.parametrize(
    ("torch", "monarch"),
    [
        ("0W0 0REDUCE_GRAD 0F1", "0W0_rs 0F1"),
        ("0B0 0REDUCE_GRAD", "0BW0_rs"),
        ("0F1 0REDUCE_GRAD", None),
        ("0I1 0REDUCE_GRAD", None),
        ("0W0 1REDUCE_GRAD", None),
        ("0REDUCE_GRAD", None),
        ("0W0 0REDUCE_GRAD 0REDUCE_GRAD", None),
    ],
)
def test_where_the_monarch_dialect_can_reduce(torch: str, monarch: str | None):
    program = [parse_action(text) for text in torch.split()]
    dialect = find_dialect("monarch")
    if monarch is None:
        with pytest.raises(FormatError, match=r"rank 3, step \d: .*REDUCE_GRAD has no text"):
            write_program(program, dialect, rank=3)
        return
    assert write_program(program, dialect, rank=3) == monarch.split()
    assert [a for text in monarch.split() for a in read_text(text, dialect)] == program


@pytest.mark.parametrize(
    "action",
    [
        Action(-1, Kind.F, 0),
        Action(0, Kind.F),
        Action(0, Kind.F, 10**9),
        Action(10**9, Kind.F, 0),
        Action(0, Kind.UNSHARD, 3),
        Action(0, Kind.F, 0, (Action(0, Kind.F, 0),)),
        Action(0, Kind.SEND_F_RECV_B, 0),
        fuse(Kind.SEND_F_RECV_B, Action(0, Kind.F, 0), Action(0, Kind.B, 0)),
        fuse(Kind.SEND_F_RECV_B, Action(-1, Kind.SEND_F, 0), Action(0, Kind.RECV_B, 0)),
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_malformed_actions_are_not_written(action: Action, dialect: str):
    with pytest.raises(FormatError):
        format_action(action, dialect=dialect)


@pytest.mark.parametrize(
    "action",
    [
        fuse(Kind.OVERLAP_F_B),
        fuse(Kind.OVERLAP_F_B, Action(0, Kind.SEND_F, 0)),
        fuse(Kind.OVERLAP_F_B, fuse(Kind.OVERLAP_F_B, Action(0, Kind.F, 0))),
        Action(3, Kind.OVERLAP_F_B, 4, (Action(0, Kind.F, 0),)),
    ],
)
def test_malformed_overlaps_are_not_written(action: Action):
    with pytest.raises(FormatError, match="not made as its kind demands"):
        format_action(action)


def test_an_unknown_dialect_is_named():
    with pytest.raises(ParameterError, match="no dialect 'jax'; there are torch, monarch"):
        parse_action("0F0", dialect="jax")
    with pytest.raises(ParameterError):
        format_action(Action(0, Kind.F, 0), dialect="jax")
