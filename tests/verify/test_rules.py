"""Each rule: its smallest bad schedule, and what the findings say."""

import re
from typing import Any

import pytest
from tests.verify.support import action, errors, example, lowered, rules, schedule

from fullbore.errors import FormatError, InvalidSchedule, ParameterError
from fullbore.formats import loads
from fullbore.ir import Action, Kind, Placement, Schedule, fuse
from fullbore.verify import MODELS, RULES, check, verify


@pytest.mark.parametrize("rule", RULES)
def test_the_smallest_bad_schedule_breaks_its_rule_and_no_other(rule: str):
    [found] = verify(example(rule))
    assert (found.rule, found.severity) == (rule, RULES[rule].severity)
    assert found.hint


@pytest.mark.parametrize("rule", RULES)
def test_no_part_of_an_example_is_there_for_nothing(rule: str):
    """Without any one action, a rule is broken differently or by something else."""
    bad = example(rule)
    [found] = verify(bad)
    for rank, step, _ in bad.actions():
        program = [a for s, a in enumerate(bad.programs[rank]) if s != step]
        programs = [*bad.programs[:rank], program, *bad.programs[rank + 1 :]]
        assert verify(bad.with_programs(programs)) != (found,)


def test_ids_are_names():
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", rule) for rule in RULES)
    assert all(RULES[rule].id == rule for rule in RULES)


@pytest.mark.parametrize("rule", RULES)
def test_examples_can_be_read_from_a_file(rule: str):
    shown = RULES[rule].example
    placement = Placement(shown.ranks)
    if rule in ("microbatch-absent", "microbatch-unexpected"):
        with pytest.raises(FormatError, match="microbatch"):
            loads(shown.csv, format="csv", placement=placement)
        return
    read = loads(
        shown.csv,
        format="csv",
        placement=placement,
        num_microbatches=shown.num_microbatches,
        form=shown.form,
    )
    assert read.programs == example(rule).programs


TWO: dict[str, Any] = {"ranks": (0, 1)}


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (schedule("0F0 0B0 0B0"), ["rank 0, step 2, 0B0: is at step 1 already"]),
        (schedule("0F-3 0F0 0B0"), ["rank 0, step 0, 0F: microbatch -3 is not in 0..0"]),
        (schedule("-1F0 0F0 0B0"), ["rank 0, step 0, -1F0: stage -1 is not in 0..0"]),
        (
            schedule("5F7 0F0 0B0"),
            [
                "rank 0, step 0, 5F7: stage 5 is not in 0..0",
                "rank 0, step 0, 5F7: microbatch 7 is not in 0..0",
            ],
        ),
        (
            schedule("0F0 (0F1;0B0)OVERLAP_F_B (0F2;0B1)OVERLAP_F_B 0B2", microbatches=2),
            [
                "rank 0, step 2, (0F2;0B1)OVERLAP_F_B: 0F2: microbatch 2 is not in 0..1",
                "rank 0, step 3, 0B2: microbatch 2 is not in 0..1",
            ],
        ),
        (
            schedule(
                "0F0 1F0 1F1 0F1 (1F1;1B0)OVERLAP_F_B 1B1 0B0 0B1", ranks=(0, 0), microbatches=2
            ),
            [
                "rank 0, step 2, 1F1: rank 0 at 1F1 waits for 0F1 (later on the same rank)",
                "rank 0, step 4, (1F1;1B0)OVERLAP_F_B: 1F1: is at step 2 already",
            ],
        ),
        (
            schedule("0F0 0F1 (0B0;1F1)OVERLAP_F_B 0B1", "1F0 1B0 1F1 1B1", microbatches=2, **TWO),
            ["rank 0, step 2, (0B0;1F1)OVERLAP_F_B: 1F1: stage 1 is placed on rank 1"],
        ),
        (
            schedule("0F0 0F1 (0B0)OVERLAP_F_B (0B1;0B1;0F0)OVERLAP_F_B", microbatches=2),
            [
                "rank 0, step 2, (0B0)OVERLAP_F_B: is made of B",
                "rank 0, step 3, (0B1;0B1;0F0)OVERLAP_F_B: is made of B, B, F",
                "rank 0, step 3, (0B1;0B1;0F0)OVERLAP_F_B: 0B1: is at step 3 already",
                "rank 0, step 3, (0B1;0B1;0F0)OVERLAP_F_B: 0F0: is at step 0 already",
            ],
        ),
        (
            schedule("0F0 0F1", microbatches=2),
            ["there is no backward at all"],
        ),
        (
            schedule("0F0 0F1 0I0 0W1 0B0", microbatches=2),
            [
                "rank 0, step 3, 0W1: stage 0 has a W without its I for microbatch 1",
                "rank 0, step 4, 0B0: stage 0 has two backwards, B beside I or W, for microbatch 0",
            ],
        ),
        (
            schedule("0F0 0B0", "1F0", **TWO),
            ["rank 1: stage 1 has no backward for microbatch 0"],
        ),
        (
            lowered("0F0 0SEND_F0 0B0", "1RECV_F0 1F0 1B0", **TWO),
            ["rank 0: stage 0 is not sent the gradients of stage 1 for microbatch 0"],
        ),
        (
            lowered("0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0 1SEND_F0", **TWO),
            ["rank 1, step 4, 1SEND_F0: there is no stage 2"],
        ),
        (
            lowered("0F0 0SEND_F0 0RECV_B0 0B0 0SEND_B0", "1RECV_F0 1F0 1B0 1SEND_B0", **TWO),
            ["rank 0, step 4, 0SEND_B0: there is no stage -1"],
        ),
        (
            lowered("0F0 0SEND_F0 0RECV_B0 0B0 1RECV_F0", "1F0 1B0 1SEND_B0", **TWO),
            ["rank 0, step 4, 1RECV_F0: stage 1 is placed on rank 1"],
        ),
        (
            lowered("0UNSHARD 0RESHARD 0UNSHARD 0F0 0RESHARD 0B0 0RESHARD"),
            [
                "rank 0, step 6, 0RESHARD: stage 0 is not unsharded here",
                "rank 0, step 5, 0B0: stage 0 is not unsharded here",
            ],
        ),
        (
            lowered("0F0 0I0 0REDUCE_GRAD 0W0 0REDUCE_GRAD"),
            [
                "rank 0, step 4, 0REDUCE_GRAD: the gradients of stage 0 are reduced at step 2",
                "rank 0, step 2, 0REDUCE_GRAD: 0W0 at step 3 adds to them later",
            ],
        ),
        (
            lowered("0F0 0REDUCE_GRAD", forward_only=True),
            ["rank 0, step 1, 0REDUCE_GRAD: the schedule is forward-only"],
        ),
    ],
)
def test_messages(bad: Schedule, expected: list[str]):
    found = [re.sub(r"^error\[[a-z-]+\] | \([^()]*\)$", "", str(each)) for each in errors(bad)]
    assert sorted(found) == sorted(expected)


PAIRS = "0F0 {} 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("(0SEND_F0;0RECV_B0)SEND_F_RECV_B", []),
        ("(0RECV_B0;0SEND_F0)SEND_F_RECV_B", ["fused-parts"]),
        ("(0SEND_F0;0RECV_B0)SEND_B_RECV_F", ["fused-parts"]),
        ("(0SEND_F0)SEND_F_RECV_B 0RECV_B0", ["fused-parts"]),
        ("()SEND_F_RECV_B 0SEND_F0 0RECV_B0", ["fused-parts"]),
        ("(0SEND_F0;0RECV_B7)SEND_F_RECV_B 0RECV_B0", ["microbatch-range"]),
    ],
)
def test_batched_pairs(pair: str, expected: list[str]):
    assert rules(lowered(PAIRS[0].format(pair), PAIRS[1], **TWO)) == expected


@pytest.mark.parametrize(
    "odd",
    [
        Action(0, Kind.F, 0, (action("0F0"),)),
        fuse(Kind.OVERLAP_F_B, action("0F0"), fuse(Kind.OVERLAP_F_B, action("0B0"))),
        Action(0, Kind.OVERLAP_F_B, 3, (action("0F0"), action("0B1"))),
    ],
    ids=["plain with parts", "nested", "fused with a stage"],
)
def test_actions_that_only_code_can_make(odd: Action):
    found = verify(Schedule(((odd,),), Placement((0,)), 2))
    assert found[0].rule == "fused-parts"


def test_reports_everything_at_once():
    bad = lowered(
        "0UNSHARD 0F0 0F0 0SEND_F0 0F7 0RECV_B0 0B0",
        "1RECV_F0 1F0 1SEND_F0 1B0 1REDUCE_GRAD 1I1",
        microbatches=2,
        **TWO,
    )
    assert set(rules(bad)) == {
        "duplicate",
        "microbatch-range",
        "transfer-nowhere",
        "missing-forward",
        "missing-backward",
        "partial-backward",
        "left-unsharded",
        "reduce-missing",
        "receive-without-send",
    }


def test_check_raises_with_all_errors_and_passes_notes():
    check(example("accumulation-order"))
    with pytest.raises(InvalidSchedule, match=r"error\[missing-forward\] rank 0: ") as caught:
        check(schedule("0B1", microbatches=2))
    found = [each.rule for each in caught.value.findings]
    assert found == ["missing-forward", "missing-backward"]


@pytest.mark.parametrize("call", [verify, check])
def test_refuses_what_it_cannot_judge(call):
    with pytest.raises(ParameterError, match="choose one of rendezvous, per_edge, buffered"):
        call(schedule("0F0 0B0"), model="telepathy")
    with pytest.raises(ParameterError, match="takes a Schedule, got a dict"):
        call({0: ["0F0", "0B0"]})


@pytest.mark.parametrize("model", MODELS)
def test_the_transport_does_not_matter_in_compute_form(model: str):
    facing = schedule("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1", microbatches=2, **TWO)
    assert verify(facing, model=model) == ()


def test_sharding_and_reduction_are_fine_in_compute_form():
    assert verify(schedule("0UNSHARD 0F0 0B0 0REDUCE_GRAD 0RESHARD")) == ()
