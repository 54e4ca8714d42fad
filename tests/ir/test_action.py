import pytest

from fullbore.ir import Action, Kind, find_mate, fuse, mate

F0, B1 = Action(0, Kind.F, 7), Action(3, Kind.B, 1)


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (F0, "0F7"),
        (Action(12, Kind.SEND_F, 10), "12SEND_F10"),
        (Action(1, Kind.UNSHARD), "1UNSHARD"),
        (Action(1, Kind.REDUCE_GRAD), "1REDUCE_GRAD"),
        (fuse(Kind.OVERLAP_F_B, F0, B1), "(0F7;3B1)OVERLAP_F_B"),
        (fuse(Kind.OVERLAP_F_B), "()OVERLAP_F_B"),
    ],
)
def test_text(action: Action, text: str):
    assert str(action) == text
    assert repr(action) == f"<{text}>"


def test_leaves_are_the_parts_or_the_action_itself():
    assert F0.leaves == (F0,)
    assert fuse(Kind.OVERLAP_F_B, F0, B1).leaves == (F0, B1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Action(2, Kind.SEND_F, 5), Action(3, Kind.RECV_F, 5)),
        (Action(2, Kind.SEND_B, 5), Action(1, Kind.RECV_B, 5)),
    ],
)
def test_mates(one: Action, other: Action):
    assert mate(one) == other
    assert mate(other) == one


@pytest.mark.parametrize("action", [F0, fuse(Kind.SEND_F_RECV_B), Action(0, Kind.UNSHARD)])
def test_other_actions_have_no_mate(action: Action):
    with pytest.raises(ValueError, match="not a single send or receive"):
        mate(action)


@pytest.mark.parametrize(
    ("action", "other"),
    [
        (Action(2, Kind.SEND_F, 5), Action(3, Kind.RECV_F, 5)),
        (Action(3, Kind.RECV_F, 5), Action(2, Kind.SEND_F, 5)),
        (Action(1, Kind.SEND_B, 5), Action(0, Kind.RECV_B, 5)),
        (Action(0, Kind.RECV_F, 5), None),
        (Action(0, Kind.SEND_B, 5), None),
        (Action(3, Kind.SEND_F, 5), None),
        (Action(3, Kind.RECV_B, 5), None),
        (Action(4, Kind.RECV_F, 5), None),
        (F0, None),
        (Action(0, Kind.UNSHARD), None),
        (fuse(Kind.SEND_F_RECV_B, Action(2, Kind.SEND_F, 5), Action(2, Kind.RECV_B, 1)), None),
    ],
)
def test_the_mate_in_four_stages(action: Action, other: Action | None):
    assert find_mate(action, 4) == other
