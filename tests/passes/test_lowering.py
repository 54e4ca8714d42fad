import pytest
from tests.passes.samples import lines, schedule

from fullbore.errors import InvalidSchedule, ParameterError
from fullbore.ir import Form, Kind
from fullbore.passes import LOWERING, PASSES, lower, run_passes
from fullbore.schedules import build

ZBV = build("zbv", num_ranks=2, num_microbatches=3)
SHARDING = {Kind.UNSHARD, Kind.RESHARD}


def kinds(found) -> set[Kind]:
    return {action.kind for _, _, action in found.actions()}


def test_the_default_pipeline():
    assert [each.name for each in LOWERING] == [
        "insert_unshard",
        "insert_reduce_grad",
        "insert_communication",
        "sink_receives",
        "batch_communication",
    ]
    assert all(PASSES[each.name] is each for each in LOWERING)


@pytest.mark.parametrize(
    ("options", "pipeline"),
    [
        ({}, "insert_communication"),
        ({"shard": True}, "insert_unshard,insert_reduce_grad,insert_communication"),
        ({"shard": True, "reduce_grad": False}, "insert_unshard,insert_communication"),
        ({"reduce_grad": True}, "insert_reduce_grad,insert_communication"),
        (
            {"shard": True, "max_active_stages": 1, "lookahead": "auto"},
            "insert_unshard{max_active_stages=1,lookahead=auto},insert_reduce_grad,"
            "insert_communication",
        ),
        ({"sink": True}, "insert_communication,sink_receives"),
        ({"batch": True}, "insert_communication,batch_communication"),
        ({"batch": True, "sink": True}, "insert_communication,sink_receives,batch_communication"),
    ],
)
def test_options(options, pipeline: str):
    lowered = lower(ZBV, **options)
    assert lowered == run_passes(ZBV, pipeline)
    assert lowered.form is Form.LOWERED
    assert lowered.name == "zbv_zero_bubble"


def test_nothing_is_sharded_or_reduced_unless_asked_for():
    assert kinds(lower(ZBV)).isdisjoint(SHARDING | {Kind.REDUCE_GRAD})
    assert kinds(lower(ZBV, shard=True)) >= SHARDING | {Kind.REDUCE_GRAD}
    assert kinds(lower(ZBV, reduce_grad=True)).isdisjoint(SHARDING)
    evaluation = build("forward_only", num_ranks=2, num_microbatches=3)
    assert Kind.REDUCE_GRAD not in kinds(lower(evaluation, shard=True))


def test_what_the_schedule_says_itself_is_kept():
    by_hand = schedule("0UNSHARD 0F0 0B0 0RESHARD 0REDUCE_GRAD", form=Form.COMPUTE)
    assert lines(lower(by_hand)) == lines(by_hand)


def test_a_lowered_schedule_is_refused():
    with pytest.raises(ParameterError, match="lower: zbv_zero_bubble is lowered already"):
        lower(lower(ZBV))


@pytest.mark.parametrize("options", [{"max_active_stages": 2}, {"lookahead": "auto"}])
def test_options_that_would_do_nothing_are_refused(options):
    with pytest.raises(ParameterError, match="max_active_stages and lookahead need shard=True"):
        lower(ZBV, **options)


def test_an_invalid_schedule_is_reported_as_it_was_given():
    with pytest.raises(InvalidSchedule) as caught:
        lower(schedule("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0"))
    assert "0B0" in str(caught.value)
    assert "1F1" in str(caught.value)


@pytest.mark.parametrize("given", [None, "1f1b", {}, ZBV.programs], ids=type)
def test_only_schedules_are_lowered(given):
    with pytest.raises(ParameterError, match=f"takes a Schedule, got a {type(given).__name__}"):
        lower(given)
