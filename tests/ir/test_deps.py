import pytest

from fullbore.formats import parse_action
from fullbore.ir import KINDS, Action, Dependencies, Fact, Form, Group, Kind, Placement, Schedule


def dependencies(placement: Placement, form: Form, num_microbatches: int = 2) -> Dependencies:
    programs = ((),) * placement.num_ranks
    return Dependencies(Schedule(programs, placement, num_microbatches, form))


def needs(text: str, deps: Dependencies) -> list[str]:
    return [deps.givers(fact) for fact in deps.needs(parse_action(text))]


VEE = Placement.vee(2)


@pytest.mark.parametrize(
    ("text", "computed", "lowered"),
    [
        ("0F1", [], []),
        ("1F1", ["0F1"], ["1RECV_F1"]),
        ("2F1", ["1F1"], ["1F1"]),
        ("3F1", ["2F1"], ["3RECV_F1"]),
        ("3B1", ["3F1"], ["3F1"]),
        ("3I0", ["3F0"], ["3F0"]),
        ("2I1", ["2F1", "3B1 or 3I1"], ["2F1", "2RECV_B1"]),
        ("1B1", ["1F1", "2B1 or 2I1"], ["1F1", "2B1 or 2I1"]),
        ("0B0", ["0F0", "1B0 or 1I0"], ["0F0", "0RECV_B0"]),
        ("2W1", ["2I1"], ["2I1"]),
        ("0SEND_F1", ["0F1"], ["0F1"]),
        ("1RECV_F1", ["0SEND_F1"], ["0SEND_F1"]),
        ("3SEND_B1", ["3B1 or 3I1"], ["3B1 or 3I1"]),
        ("2RECV_B1", ["3SEND_B1"], ["3SEND_B1"]),
        ("2UNSHARD", [], []),
        ("2RESHARD", [], []),
        ("2REDUCE_GRAD", ["2B0 or 2W0", "2B1 or 2W1"], ["2B0 or 2W0", "2B1 or 2W1"]),
        ("(1F1;3B0)OVERLAP_F_B", ["0F1", "3F0"], ["1RECV_F1", "3F0"]),
        ("(2F1;2B1)OVERLAP_F_B", ["1F1", "3B1 or 3I1"], ["1F1", "2RECV_B1"]),
        (
            "(0SEND_F1;0RECV_B0)SEND_F_RECV_B",
            ["0F1", "1SEND_B0"],
            ["0F1", "1SEND_B0"],
        ),
    ],
)
def test_the_rule(text: str, computed: list[str], lowered: list[str]):
    assert needs(text, dependencies(VEE, Form.COMPUTE)) == computed
    assert needs(text, dependencies(VEE, Form.LOWERED)) == lowered


@pytest.mark.parametrize("form", Form)
def test_one_rank_needs_no_messages(form: Form):
    deps = dependencies(Placement((0, 0)), form)
    assert needs("1F0", deps) == ["0F0"]
    assert needs("0I0", deps) == ["0F0", "1B0 or 1I0"]


def test_whoever_is_said_to_give_a_fact_gives_it():
    deps = dependencies(VEE, Form.LOWERED)
    outside = ("-1", str(VEE.num_stages))
    for fact in range(deps.size):
        for text in deps.givers(fact).split(" or "):
            # Messages from outside the pipeline are facts that nobody needs.
            if not text.startswith(outside):
                assert fact in deps.gives(parse_action(text))


def test_facts_of_different_cells_differ():
    deps = dependencies(VEE, Form.LOWERED, 3)
    plain = [kind for kind, info in KINDS.items() if info.group is Group.COMPUTE and not info.fused]
    for kind in plain:
        codes = [deps.gives(Action(s, kind, m)) for s in range(4) for m in range(3)]
        flat = [code for given in codes for code in given]
        assert len(set(flat)) == len(flat)
        assert all(0 <= code < deps.size for code in flat)


def test_fused_actions_give_what_their_parts_give():
    deps = dependencies(VEE, Form.COMPUTE)
    overlap = parse_action("(1F1;3B0)OVERLAP_F_B")
    parts = [fact for part in overlap.parts for fact in deps.gives(part)]
    assert list(deps.gives(overlap)) == parts
    assert [deps.givers(fact) for fact in parts] == ["1F1", "3B0 or 3I0", "3B0 or 3W0"]


def test_sharding_gives_nothing():
    deps = dependencies(VEE, Form.LOWERED)
    for kind in (Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE_GRAD):
        assert deps.gives(Action(1, kind)) == ()


def test_codes_are_what_needs_and_gives_speak():
    deps = dependencies(VEE, Form.COMPUTE)
    assert deps.needs(Action(3, Kind.W, 1)) == (deps.code(Fact.KEPT, 3, 1),)
    assert deps.gives(Action(3, Kind.F, 1)) == (deps.code(Fact.OUTPUT, 3, 1),)
