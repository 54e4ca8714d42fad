"""The verifier: everything that is wrong with a schedule, all at once."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fullbore.errors import InvalidSchedule, ParameterError
from fullbore.ir import Schedule
from fullbore.verify import accumulation, channels, order, sharding, structure, work
from fullbore.verify.accumulation import in_order, note_accumulation
from fullbore.verify.channels import check_channels
from fullbore.verify.findings import Example, Finding, Report, Rule
from fullbore.verify.local import check_local_stages
from fullbore.verify.order import MODELS, check_order
from fullbore.verify.sharding import check_sharding
from fullbore.verify.structure import Survey
from fullbore.verify.work import check_work

__all__ = [
    "MODELS",
    "RULES",
    "Example",
    "Finding",
    "Rule",
    "accumulates_in_order",
    "check",
    "check_local_stages",
    "verify",
]

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.id: rule
        for family in (structure, work, channels, sharding, order, accumulation)
        for rule in family.RULES
    }
)


def verify(schedule: Schedule, *, model: str = "rendezvous") -> tuple[Finding, ...]:
    """Everything found in ``schedule``: errors first, by family of rules, then notes.

    An action that is wrong in itself is reported and left out of what follows, and what is missing
    is taken to be there, so that one fault shows as one finding. Notes are only taken of schedules
    without errors.

    Args:
        schedule: in either form.
        model: the transport for which a LOWERED schedule must not deadlock. ``rendezvous`` (the
            strictest): sends and receives block, in the order of the program, until they meet.
            ``per_edge``: each direction between two ranks has a queue of its own, in which one
            message can be on its way; a receive blocks, a send only while the message before it
            has not been received. ``buffered``: a send never blocks.

    Raises:
        ParameterError: no such model, or not a Schedule.
    """
    if model not in MODELS:
        raise ParameterError(
            f"verify: there is no model {model!r}; choose one of {', '.join(MODELS)}"
        )
    report = Report()
    survey = _survey(schedule, report)
    check_work(survey, report)
    check_sharding(survey, report)
    transfers = check_channels(survey, report)
    check_order(survey, transfers, report, model=model)
    if not report.found():
        note_accumulation(survey, report)
    return report.findings()


def check(schedule: Schedule, *, model: str = "rendezvous") -> None:
    """Raise if ``verify`` finds an error; notes are no errors.

    Raises:
        InvalidSchedule: with all errors in ``findings``.
        ParameterError: as for ``verify``.
    """
    errors = [finding for finding in verify(schedule, model=model) if finding.severity == "error"]
    if errors:
        raise InvalidSchedule(errors, schedule.name)


def accumulates_in_order(schedule: Schedule) -> tuple[bool, ...]:
    """For each stage, whether its gradients add up in the order of the microbatches 0..M-1.

    Where they do, they equal those of a plain loop over the microbatches bit for bit; elsewhere
    within float noise. Meant for schedules that ``check`` accepts. Raises ParameterError for what
    is not a Schedule.
    """
    survey = _survey(schedule, Report())
    return tuple(in_order(survey, stage) for stage in range(schedule.num_stages))


def _survey(schedule: Schedule, report: Report) -> Survey:
    if not isinstance(schedule, Schedule):
        raise ParameterError(f"verify: takes a Schedule, got a {type(schedule).__name__}")
    if not isinstance(schedule.programs, tuple):
        raise ParameterError(
            "schedule: programs must be a tuple with one program a rank, rank 0 first; got a "
            f"{type(schedule.programs).__name__}"
        )
    return Survey(schedule, report)
