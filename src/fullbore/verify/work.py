"""Is every piece of work there: one forward and one backward of every stage and microbatch?"""

from __future__ import annotations

from collections.abc import Set
from itertools import count, islice

from fullbore.ir import Action, Kind
from fullbore.verify.findings import Example, Report, Rule, listed
from fullbore.verify.structure import Survey

MISSING_FORWARD = Rule(
    "missing-forward",
    "Every stage runs F for every microbatch.",
    "add the F, or lower num_microbatches",
    Example("0B0"),
)
MISSING_BACKWARD = Rule(
    "missing-backward",
    "Every stage runs a backward for every microbatch: B, or I and W. A schedule that is meant to "
    "have none says so (forward_only).",
    "add the backward",
    Example("0F0,0F1,0B0", num_microbatches=2),
)
PARTIAL_BACKWARD = Rule(
    "partial-backward",
    "I and W are the two halves of a backward, and one does not come without the other.",
    "add the other half, or replace it by B",
    Example("0F0,0I0"),
)
TWO_BACKWARDS = Rule(
    "two-backwards",
    "A microbatch has one backward in each stage: B does the work of I and W, so neither of these "
    "comes beside it.",
    "keep either B, or I and W",
    Example("0F0,0B0,0I0"),
)
WEIGHT_BEFORE_INPUT = Rule(
    "weight-before-input",
    "W uses what I leaves behind, so it comes later.",
    "move the W behind its I",
    Example("0F0,0W0,0I0"),
)

RULES = (
    MISSING_FORWARD,
    MISSING_BACKWARD,
    PARTIAL_BACKWARD,
    TWO_BACKWARDS,
    WEIGHT_BEFORE_INPUT,
)

_BACKWARD = (Kind.B, Kind.I, Kind.W)


def check_work(survey: Survey, report: Report) -> None:
    """Report what is missing, doubled or halved, one finding a stage, and each W before its I."""
    ranks, backward = survey.schedule.placement.ranks, not survey.schedule.forward_only
    if backward and not any(survey.present(k, s) for k in _BACKWARD for s in range(len(ranks))):
        backward = False
        report.add(
            MISSING_BACKWARD,
            "there is no backward at all",
            hint="add the backwards, or set forward_only if none are wanted",
        )
    for stage, rank in enumerate(ranks):
        forward = survey.present(Kind.F, stage)
        _report_absent(survey, report, stage, forward, MISSING_FORWARD, "F")
        if backward:
            _check_backward(survey, report, stage, rank)


def _check_backward(survey: Survey, report: Report, stage: int, rank: int) -> None:
    full, first, second = (survey.present(kind, stage) for kind in _BACKWARD)
    split = first | second
    _report_absent(survey, report, stage, full | split, MISSING_BACKWARD, "backward")
    for rule, kind, microbatches, what in (
        (PARTIAL_BACKWARD, Kind.I, first - second - full, "an I without its W"),
        (PARTIAL_BACKWARD, Kind.W, second - first - full, "a W without its I"),
        (TWO_BACKWARDS, Kind.B, full & split, "two backwards, B beside I or W,"),
    ):
        if microbatches:
            lowest = sorted(microbatches)[:3]
            message = f"stage {stage} has {what} for {listed(len(microbatches), lowest)}"
            step = survey.steps[kind][stage].get(lowest[0])
            action = Action(stage, kind, lowest[0])
            report.add(rule, message, rank=rank, step=step, action=action)
    inputs = survey.steps[Kind.I][stage]
    for microbatch, step in survey.steps[Kind.W][stage].items():
        if step < inputs.get(microbatch, -1):
            message = f"its I comes at step {inputs[microbatch]}"
            action = Action(stage, Kind.W, microbatch)
            report.add(WEIGHT_BEFORE_INPUT, message, rank=rank, step=step, action=action)


def _report_absent(
    survey: Survey, report: Report, stage: int, present: Set[int], rule: Rule, what: str
) -> None:
    absent = survey.schedule.num_microbatches - len(present)
    if not absent:
        return
    # A file may name microbatch 10**12: count what is missing, do not list it.
    first = islice((m for m in count() if m not in present), min(absent, 3))
    message = f"stage {stage} has no {what} for {listed(absent, list(first))}"
    report.add(rule, message, rank=survey.schedule.placement.ranks[stage])
