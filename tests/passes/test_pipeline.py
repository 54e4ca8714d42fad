import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.passes.samples import lines, schedule

from fullbore.errors import InvalidSchedule, ParameterError, PassError
from fullbore.ir import Form, Kind, Schedule
from fullbore.passes import (
    PASSES,
    InsertCommunication,
    InsertReduceGrad,
    InsertUnshard,
    MergeBackward,
    Pass,
    parse_pipeline,
    run_passes,
)

SPLIT = schedule("0F0 0I0 0W0")


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("", ()),
        ("  ", ()),
        ("merge_backward", (MergeBackward(),)),
        ("merge_backward{}", (MergeBackward(),)),
        (
            "insert_unshard{max_active_stages=3},insert_communication",
            (InsertUnshard(), InsertCommunication()),
        ),
        (
            " insert_unshard { max_active_stages = 2 , lookahead = auto } , insert_reduce_grad ",
            (InsertUnshard(2, "auto"), InsertReduceGrad()),
        ),
        ("insert_unshard{lookahead=2}", (InsertUnshard(lookahead=2),)),
        ("insert_unshard{lookahead=2/3/4}", (InsertUnshard(lookahead=(2, 3, 4)),)),
        ("insert_unshard{lookahead=2/}", (InsertUnshard(lookahead=(2,)),)),
    ],
)
def test_parse(text: str, passes: tuple[Pass, ...]):
    assert parse_pipeline(text) == passes
    assert parse_pipeline(",".join(map(str, passes))) == passes


def unshards() -> st.SearchStrategy[InsertUnshard]:
    number = st.integers(1, 10**9 - 1)
    many = st.lists(number, min_size=1, max_size=4).map(tuple)
    return st.builds(
        InsertUnshard, number, st.one_of(number, many, st.sampled_from(["auto", None]))
    )


@settings(max_examples=30)
@given(st.lists(st.one_of(unshards(), st.sampled_from([each() for each in PASSES.values()]))))
def test_text_round_trips(passes: list[Pass]):
    assert parse_pipeline(",".join(map(str, passes))) == tuple(passes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fold", "pipeline: there is no pass 'fold'; there are merge_backward, split_backward, "),
        ("Merge_Backward", "there is no pass 'Merge_Backward'"),
        (",", "pipeline: cannot read ',' from column 1 on; expected passes and commas"),
        ("merge_backward,", "from column 16 on"),
        ("merge_backward,,split_backward", "from column 16 on"),
        ("merge_backward split_backward", "from column 16 on"),
        ("merge_backward;split_backward", "from column 15 on"),
        ("insert_unshard{max_active_stages=3", "from column 15 on"),
        ("insert_unshard}", "from column 15 on"),
        ("insert_unshard{{}}", "from column 15 on"),
        ("insert_unshard{lookahead}", "insert_unshard: 'lookahead' is not an option; expected"),
        ("insert_unshard{lookahead=1,}", "insert_unshard: '' is not an option"),
        ("insert_unshard{lookahead=1=2}", "'lookahead=1=2' is not an option"),
        ("insert_unshard{lookahead=}", "'lookahead=' is not an option"),
        (
            "insert_unshard{window=3}",
            "insert_unshard: there is no option 'window'; it has max_active_stages, lookahead",
        ),
        ("sink_receives{x=1}", "sink_receives: there is no option 'x'; it has none"),
        ("insert_unshard{lookahead=1,lookahead=2}", "option 'lookahead' is given twice"),
        ("insert_unshard{lookahead=far}", "insert_unshard: lookahead must be .*; got 'far'"),
        ("insert_unshard{lookahead=1/0}", r"lookahead must be .*; got \(1, 0\)"),
        ("insert_unshard{max_active_stages=0}", "max_active_stages must be .* got 0"),
        ("insert_unshard{max_active_stages=-3}", "max_active_stages must be .* got -3"),
        ("insert_unshard{max_active_stages=٣}", "is not an option"),
        (f"insert_unshard{{max_active_stages={'9' * 5000}}}", "max_active_stages must be"),
    ],
)
def test_what_cannot_be_read(text: str, message: str):
    with pytest.raises(ParameterError, match=message):
        parse_pipeline(text)


def test_passes_run_in_order():
    text = "merge_backward,insert_reduce_grad,insert_communication"
    for pipeline in (text, parse_pipeline(text), list(parse_pipeline(text))):
        result = run_passes(SPLIT, pipeline, verify_each=True)
        assert lines(result) == ["0F0 0B0 0REDUCE_GRAD"]
        assert result.form is Form.LOWERED
    assert run_passes(SPLIT, "") is SPLIT


def test_the_input_is_verified():
    with pytest.raises(InvalidSchedule, match="0F0"):
        run_passes(schedule("0F0 0F0 0B0"), "merge_backward")
    with pytest.raises(InvalidSchedule):
        run_passes(schedule("0F0 0F0 0B0"), "")


class Spoil(Pass):
    name, takes = "spoil", (Form.COMPUTE,)

    def apply(self, schedule: Schedule) -> Schedule:
        kept = [[a for a in p if a.kind is not Kind.W] for p in schedule.programs]
        return schedule.with_programs(kept)


class Mend(Pass):
    name, takes = "mend", (Form.COMPUTE,)

    def apply(self, schedule: Schedule) -> Schedule:
        return SPLIT


def test_the_result_is_verified():
    with pytest.raises(
        PassError, match=r"merge_backward,spoil on schedule: the result is wrong: "
    ) as caught:
        run_passes(schedule("0F0 0F1 0I0 0I1 0W0 0W1"), [MergeBackward(), Spoil()])
    assert isinstance(caught.value.__cause__, InvalidSchedule)


def test_verify_each_tells_which_pass_is_to_blame():
    assert run_passes(SPLIT, [Spoil(), Mend()]) == SPLIT
    with pytest.raises(PassError, match=r"^spoil on schedule: "):
        run_passes(SPLIT, [Spoil(), Mend()], verify_each=True)


@pytest.mark.parametrize("wrong", ["merge_backward", MergeBackward, print])
def test_only_passes_are_run(wrong: object):
    with pytest.raises(ParameterError, match=r"^run_passes: .* is no pass; give a list such as"):
        run_passes(SPLIT, [wrong])  # type: ignore[list-item]


@pytest.mark.parametrize("wrong", [None, 3])
def test_what_is_no_sequence_is_no_pass(wrong):
    with pytest.raises(ParameterError, match=f"^run_passes: {wrong} is no pass"):
        run_passes(SPLIT, wrong)


def test_a_pass_that_does_not_fit_is_named():
    with pytest.raises(PassError, match="merge_backward on schedule: takes COMPUTE form"):
        run_passes(SPLIT, "insert_communication,merge_backward")
