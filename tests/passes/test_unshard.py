import pytest
from tests.passes.samples import built, lines, schedule

from fullbore.errors import ParameterError, PassError
from fullbore.ir import Kind
from fullbore.passes import InsertUnshard
from fullbore.verify import check

THREE = "0F0 1F0 2F0 2B0 1B0 0B0"


@pytest.mark.parametrize(
    ("options", "after"),
    [
        (
            {},
            "0UNSHARD 1UNSHARD 2UNSHARD 0F0 1F0 2F0 2B0 2RESHARD 1B0 1RESHARD 0B0 0RESHARD",
        ),
        (
            {"max_active_stages": 2},
            "0UNSHARD 1UNSHARD 0F0 0RESHARD 2UNSHARD 1F0 2F0 2B0 2RESHARD 0UNSHARD 1B0 "
            "1RESHARD 0B0 0RESHARD",
        ),
        (
            {"max_active_stages": 1},
            "0UNSHARD 0F0 0RESHARD 1UNSHARD 1F0 1RESHARD 2UNSHARD 2F0 2B0 2RESHARD 1UNSHARD 1B0 "
            "1RESHARD 0UNSHARD 0B0 0RESHARD",
        ),
        (
            {"lookahead": 1},
            "0UNSHARD 0F0 1UNSHARD 1F0 2UNSHARD 2F0 2B0 2RESHARD 1B0 1RESHARD 0B0 0RESHARD",
        ),
        (
            {"max_active_stages": 2, "lookahead": 1},
            "0UNSHARD 0F0 0RESHARD 1UNSHARD 1F0 2UNSHARD 2F0 2B0 2RESHARD 1B0 "
            "1RESHARD 0UNSHARD 0B0 0RESHARD",
        ),
    ],
)
def test_windows(options, after: str):
    assert lines(InsertUnshard(**options)(schedule(THREE))) == [after]


def test_an_overlap_is_not_cut():
    before = schedule("0F0 1F0 (0F1;1B0)OVERLAP_F_B 0B0 1F1 1B1 0B1")
    assert lines(InsertUnshard(max_active_stages=1)(before)) == [
        "0UNSHARD 0F0 0RESHARD 1UNSHARD 1F0 0UNSHARD (0F1;1B0)OVERLAP_F_B 1RESHARD 0B0 "
        "0RESHARD 1UNSHARD 1F1 1B1 1RESHARD 0UNSHARD 0B1 0RESHARD"
    ]


def test_lookahead_by_rank():
    before = schedule("\n".join(" ".join(f"{r + s}F0" for s in (0, 3, 6)) for r in range(3)))
    starts = [
        "0UNSHARD 3UNSHARD 0F0",
        "1UNSHARD 4UNSHARD 7UNSHARD 1F0",
        "2UNSHARD 5UNSHARD 8UNSHARD 2F0",
    ]
    for lookahead in ("auto", (2, 3, 9)):
        after = lines(InsertUnshard(lookahead=lookahead)(before))
        assert [line[: len(start)] for line, start in zip(after, starts, strict=True)] == starts


@pytest.mark.parametrize("keep", [1, 2])
def test_lookahead_changes_only_when_gathers_start(keep: int):
    for found in built(ranks=(1, 3), per_rank=(3,), microbatches=(4,)):
        full = InsertUnshard(keep)(found)
        check(full)
        late = InsertUnshard(keep, lookahead=1)(found)
        check(late)
        for one, other in zip(full.programs, late.programs, strict=True):
            assert [a for a in one if a.kind is not Kind.UNSHARD] == [
                a for a in other if a.kind is not Kind.UNSHARD
            ]
            assert sorted(one) == sorted(other)


def test_no_more_than_allowed_are_held():
    for found in built(ranks=(1, 3), per_rank=(3,), microbatches=(4,)):
        for keep in (1, 2, 3):
            for program in InsertUnshard(keep)(found).programs:
                held = most = 0
                for action in program:
                    held += (action.kind is Kind.UNSHARD) - (action.kind is Kind.RESHARD)
                    most = max(most, held)
                overlaps = any(action.parts for action in program)
                assert held == 0
                assert most <= keep + overlaps


def test_only_once():
    with pytest.raises(PassError, match="it has UNSHARD actions already"):
        InsertUnshard()(InsertUnshard()(schedule(THREE)))


def test_one_number_for_each_rank():
    with pytest.raises(PassError, match="lookahead has 2 numbers for 1 ranks"):
        InsertUnshard(lookahead=(1, 2))(schedule(THREE))


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "3", None, (1,)])
def test_max_active_stages_is_a_positive_number(wrong: object):
    with pytest.raises(ParameterError, match=r"max_active_stages must be .* at least 1, got "):
        InsertUnshard(max_active_stages=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0, -1, True, "full", "", (), (1, 0), [1, 2], (1, "2")])
def test_lookahead_is_positive_or_auto(wrong: object):
    with pytest.raises(ParameterError, match=r"lookahead must be .* at least 1.* got "):
        InsertUnshard(lookahead=wrong)  # type: ignore[arg-type]
