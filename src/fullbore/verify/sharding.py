"""Sharded parameters: gathered before they are used, freed afterwards, reduced when complete."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import chain

from fullbore.ir import Action, Form, Kind
from fullbore.verify.findings import Example, Report, Rule
from fullbore.verify.structure import Survey

UNSHARD_TWICE = Rule(
    "unshard-twice",
    "A stage that is unsharded is not unsharded again.",
    "leave one UNSHARD out, or RESHARD in between",
    Example("0UNSHARD,0UNSHARD,0F0,0B0,0RESHARD", form=Form.LOWERED),
)
RESHARD_CLOSED = Rule(
    "reshard-closed",
    "Only a stage that is unsharded is resharded.",
    "leave the RESHARD out, or add the UNSHARD",
    Example("0UNSHARD,0F0,0B0,0RESHARD,0RESHARD", form=Form.LOWERED),
)
LEFT_UNSHARDED = Rule(
    "left-unsharded",
    "At the end every stage is resharded again.",
    "add the RESHARD after the stage's last computation",
    Example("0UNSHARD,0F0,0B0", form=Form.LOWERED),
)
COMPUTE_SHARDED = Rule(
    "compute-sharded",
    "Where a schedule shards a stage, the stage computes only while it is unsharded.",
    "UNSHARD the stage first, or RESHARD it later",
    Example("0UNSHARD,0F0,0RESHARD,0B0", form=Form.LOWERED),
)
REDUCE_EARLY = Rule(
    "reduce-early",
    "Gradients are reduced when they are complete: after the stage's last B or W.",
    "move the REDUCE_GRAD behind the stage's last B or W",
    Example("0F0,0REDUCE_GRAD,0B0", form=Form.LOWERED),
)
REDUCE_TWICE = Rule(
    "reduce-twice",
    "The gradients of a stage are reduced once.",
    "leave one REDUCE_GRAD out",
    Example("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD", form=Form.LOWERED),
)
REDUCE_MISSING = Rule(
    "reduce-missing",
    "If one stage reduces its gradients, all do.",
    "add the REDUCE_GRAD after the stage's last B or W",
    Example("0F0,1F0,1B0,1REDUCE_GRAD,0B0", ranks=(0, 0), form=Form.LOWERED),
)

RULES = (
    UNSHARD_TWICE,
    RESHARD_CLOSED,
    LEFT_UNSHARDED,
    COMPUTE_SHARDED,
    REDUCE_EARLY,
    REDUCE_TWICE,
    REDUCE_MISSING,
)

_COMPUTE = (Kind.F, Kind.B, Kind.I, Kind.W)

Entries = Sequence[tuple[int, Kind]]  # steps and what is done there


def check_sharding(survey: Survey, report: Report) -> None:
    """Report stages whose parameters are used or gradients reduced at the wrong time."""
    reduces = {
        stage: [step for step, kind in entries if kind is Kind.REDUCE_GRAD]
        for stage, entries in survey.sharding.items()
    }
    reduced = any(reduces.values())
    for stage, rank in enumerate(survey.schedule.placement.ranks):
        gathers = [e for e in survey.sharding.get(stage, ()) if e[1] is not Kind.REDUCE_GRAD]
        if gathers:
            unsharded = _intervals(report, gathers, stage=stage, rank=rank)
            _check_compute(survey, report, unsharded, stage=stage, rank=rank)
        if reduced:
            _check_reduction(survey, report, reduces.get(stage, ()), stage=stage, rank=rank)


def _intervals(report: Report, entries: Entries, *, stage: int, rank: int) -> list[range]:
    """The steps during which the stage is unsharded; reports imbalance."""
    intervals: list[range] = []
    since: int | None = None
    for step, kind in entries:
        action = Action(stage, kind)
        if kind is Kind.UNSHARD and since is not None:
            message = f"stage {stage} is unsharded since step {since}"
            report.add(UNSHARD_TWICE, message, rank=rank, step=step, action=action)
        elif kind is Kind.UNSHARD:
            since = step
        elif since is None:
            message = f"stage {stage} is not unsharded here"
            report.add(RESHARD_CLOSED, message, rank=rank, step=step, action=action)
        else:
            intervals.append(range(since, step))
            since = None
    if since is not None:
        message = f"stage {stage} is never resharded after this"
        action = Action(stage, Kind.UNSHARD)
        report.add(LEFT_UNSHARDED, message, rank=rank, step=since, action=action)
        intervals.append(range(since, sys.maxsize))
    return intervals


def _check_compute(
    survey: Survey, report: Report, unsharded: Sequence[range], *, stage: int, rank: int
) -> None:
    steps = sorted(chain.from_iterable(survey.steps[kind][stage].values() for kind in _COMPUTE))
    intervals = iter(unsharded)
    current = next(intervals, None)
    for step in steps:
        while current is not None and step >= current.stop:
            current = next(intervals, None)
        if current is None or step < current.start:
            action = survey.programs[rank][step]
            message = f"stage {stage} is not unsharded here"
            report.add(COMPUTE_SHARDED, message, rank=rank, step=step, action=action)


def _check_reduction(
    survey: Survey, report: Report, reduces: Sequence[int], *, stage: int, rank: int
) -> None:
    if not reduces:
        message = f"stage {stage} has no REDUCE_GRAD, other stages have"
        report.add(REDUCE_MISSING, message, rank=rank)
        return
    action = Action(stage, Kind.REDUCE_GRAD)
    for step in reduces[1:]:
        message = f"the gradients of stage {stage} are reduced at step {reduces[0]}"
        report.add(REDUCE_TWICE, message, rank=rank, step=step, action=action)
    gradients = (survey.steps[kind][stage].values() for kind in (Kind.B, Kind.W))
    last = max(chain.from_iterable(gradients), default=-1)
    if reduces[0] < last:
        message = f"{survey.programs[rank][last]} at step {last} adds to them later"
        report.add(REDUCE_EARLY, message, rank=rank, step=reduces[0], action=action)
