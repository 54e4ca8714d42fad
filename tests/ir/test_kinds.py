import pytest

from fullbore.ir import KINDS, Group, Kind


def test_every_kind_has_a_row():
    assert list(KINDS) == list(Kind)


def test_the_table_cannot_be_changed():
    with pytest.raises(TypeError):
        KINDS[Kind.F] = KINDS[Kind.B]  # type: ignore[index]


@pytest.mark.parametrize("kind", [kind for kind, info in KINDS.items() if info.mate is not None])
def test_transfers_come_in_mates(kind: Kind):
    info = KINDS[kind]
    assert info.mate is not None
    back = KINDS[info.mate]
    assert (back.mate, back.stage_step) == (kind, -info.stage_step)
    assert info.group is back.group is Group.COMMUNICATION
    assert abs(info.stage_step) == 1


@pytest.mark.parametrize("kind", [kind for kind, info in KINDS.items() if info.fused])
def test_fused_kinds_are_named_after_their_parts(kind: Kind):
    info = KINDS[kind]
    assert kind.name.removeprefix("OVERLAP_") == "_".join(part.name for part in info.parts)
    assert {KINDS[part].group for part in info.parts} == {info.group}
    assert not info.has_microbatch


def test_only_transfers_have_mates():
    plain = [info for info in KINDS.values() if not info.fused]
    for info in plain:
        assert (info.mate is not None) is (info.group is Group.COMMUNICATION)
        assert info.has_microbatch is (info.group is not Group.SHARDING)
