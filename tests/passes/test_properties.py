"""Any legal compute order on any placement."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.passes.samples import compute, orders
from tests.symbolic import reference, run

from fullbore.ir import Form, Schedule
from fullbore.passes import (
    PASSES,
    BatchCommunication,
    ForwardOnly,
    InsertCommunication,
    InsertUnshard,
    Pass,
    SinkReceives,
    run_passes,
)
from fullbore.verify import check

few = settings(max_examples=20)
KEEP_COMPUTE = [
    each
    for each in PASSES.values()
    if each.name not in ("merge_backward", "split_backward", "forward_only")
]


@few
@given(orders())
def test_every_order_can_be_lowered(schedule: Schedule):
    lowered = InsertCommunication()(schedule)
    for result in (lowered, SinkReceives()(lowered), BatchCommunication()(lowered)):
        check(result, model="rendezvous")
        assert compute(result) == compute(schedule)
        assert run(result) == reference(schedule)


@few
@given(orders(), st.data())
def test_any_pipeline_keeps_schedules_valid(schedule: Schedule, data: st.DataObject):
    passes: list[Pass] = []
    form = schedule.form
    for _ in range(data.draw(st.integers(1, 6))):
        fit = [p for p in PASSES.values() if form in p.takes and p.name[:6] != "insert"]
        fit += [InsertCommunication] if form is Form.COMPUTE else []
        each = data.draw(st.sampled_from(fit))
        passes.append(each())
        form = each.gives or form
    before = str(schedule.programs)
    result = run_passes(schedule, passes, verify_each=True)
    assert result == run_passes(schedule, ",".join(map(str, passes)))
    assert str(schedule.programs) == before
    assert run(result) == reference(result)
    if {type(each) for each in passes} <= set(KEEP_COMPUTE):
        assert compute(result) == compute(schedule)


@few
@given(orders(), st.integers(1, 4), st.sampled_from([None, "auto", 1, 2]))
def test_sharding(schedule: Schedule, keep: int, ahead):
    pipeline = [PASSES["fuse_overlap"](), InsertUnshard(keep, ahead), InsertCommunication()]
    result = run_passes(schedule, pipeline, verify_each=True)
    assert compute(result) == compute(schedule)
    check(ForwardOnly()(result))
