"""What the verifier says: rules, findings, and the report that collects them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from fullbore.ir import Action, Form

Severity = Literal["error", "note"]

_LIMIT = 8  # findings of one rule on one rank that are spelled out; the others are counted


@dataclass(frozen=True, slots=True)
class Example:
    """The smallest schedule that breaks a rule and no other.

    Attributes:
        csv: its programs, one row a rank, in the ``torch`` dialect.
        ranks: its placement, the rank of each stage.
        num_microbatches, form, forward_only: as in ``Schedule``.
    """

    csv: str
    ranks: tuple[int, ...] = (0,)
    num_microbatches: int = 1
    form: Form = Form.COMPUTE
    forward_only: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """Something that every schedule must respect (an error), or that is good to know (a note).

    Attributes:
        id: its name, which stays the same from version to version.
        says: what must hold, for people.
        hint: what to do about a finding.
        example: the smallest schedule that breaks it.
    """

    id: str
    says: str
    hint: str
    example: Example
    severity: Severity = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found in a schedule; ``str(finding)`` is one line.

    Attributes:
        rule: the id of the rule, a key of ``RULES``.
        rank, step: where in the programs; None where it is no single place.
        action: the text of the action there; empty where there is none.
        message: what is wrong.
        hint: what to do about it.
        severity: ``error`` or ``note``.
    """

    rule: str
    rank: int | None
    step: int | None
    action: str
    message: str
    hint: str
    severity: Severity = "error"

    def __str__(self) -> str:
        place = [
            f"{name} {value}"
            for name, value in (("rank", self.rank), ("step", self.step))
            if value is not None
        ]
        place += [self.action] if self.action else []
        where = f" {', '.join(place)}:" if place else ""
        return f"{self.severity}[{self.rule}]{where} {self.message} ({self.hint})"


class Report:
    """Collects findings. Of each rule and rank it keeps the first few and counts the others, so
    that what people read stays short however broken a large schedule is."""

    def __init__(self) -> None:
        self._findings: list[Finding] = []
        self._counts: Counter[tuple[str, int | None]] = Counter()
        self._rules: dict[str, Rule] = {}

    def add(
        self,
        rule: Rule,
        message: str,
        *,
        rank: int | None = None,
        step: int | None = None,
        action: Action | None = None,
        hint: str | None = None,
    ) -> None:
        """A finding of ``rule``, with the rule's hint unless a better one is given."""
        self._rules[rule.id] = rule
        self._counts[rule.id, rank] += 1
        if self._counts[rule.id, rank] > _LIMIT:
            return
        text = "" if action is None else shown(action)
        advice = rule.hint if hint is None else hint
        self._findings.append(Finding(rule.id, rank, step, text, message, advice, rule.severity))

    def found(self, *rules: Rule) -> bool:
        """Whether there is a finding of one of ``rules``; of any rule if none is named."""
        if not rules:
            return bool(self._findings)
        return any(rule.id in self._rules for rule in rules)

    def findings(self) -> tuple[Finding, ...]:
        """Everything found, in the order of adding, and then how much was only counted."""
        counted = (
            (self._rules[rule], rank, count - _LIMIT)
            for (rule, rank), count in self._counts.items()
            if count > _LIMIT
        )
        rest = (
            Finding(rule.id, rank, None, "", f"{more:,} more like these", rule.hint, rule.severity)
            for rule, rank, more in counted
        )
        return (*self._findings, *rest)


def shown(action: Action) -> str:
    """The text of an action, cut short where one made by hand would be long or deep."""
    parts = action.parts
    if len(parts) <= 4 and not any(part.parts for part in parts):
        return str(action)
    return f"({len(parts)} parts){action.kind.name}"


def listed(count: int, first: list[int]) -> str:
    """``microbatch 3``, ``microbatches 1, 2`` or ``4,096 microbatches (0, 1, 2, ...)``."""
    numbers = ", ".join(map(str, first))
    if count == 1:
        return f"microbatch {numbers}"
    if count == len(first):
        return f"microbatches {numbers}"
    return f"{count:,} microbatches ({numbers}, ...)"
