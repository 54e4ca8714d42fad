"""In which order a stage's gradients add up, which decides whether results are bitwise equal."""

from __future__ import annotations

from itertools import pairwise

from fullbore.ir import Kind
from fullbore.verify.findings import Example, Report, Rule
from fullbore.verify.structure import Survey

ACCUMULATION_ORDER = Rule(
    "accumulation-order",
    "A stage that runs its B and W, and its B and I, in the order of the microbatches 0..M-1 has "
    "the gradients of a plain loop bit for bit. In another order floating-point sums differ a "
    "little, and they are equal within float noise.",
    "nothing to do unless gradients must be equal bit for bit",
    Example("0F0,0F1,0B1,0B0", num_microbatches=2),
    severity="note",
)

RULES = (ACCUMULATION_ORDER,)

# Parameters whose gradients W computes add up in the order of the first pair, those that the
# input half has to finish in the order of the second.
_ORDERS = ((Kind.B, Kind.W), (Kind.B, Kind.I))


def note_accumulation(survey: Survey, report: Report) -> None:
    """A note for each stage that accumulates in another order than 0..M-1."""
    for stage, rank in enumerate(survey.schedule.placement.ranks):
        for kinds in _ORDERS:
            order = accumulation_order(survey, stage, kinds)
            if _ascends(order):
                continue
            first = ", ".join(map(str, order[:8])) + (", ..." if len(order) > 8 else "")
            done = " and ".join(kind.name for kind in kinds if survey.steps[kind][stage])
            report.add(
                ACCUMULATION_ORDER,
                f"stage {stage} runs {done} in the order {first}",
                rank=rank,
            )
            break


def in_order(survey: Survey, stage: int) -> bool:
    """Whether the stage's gradients add up in the order 0..M-1."""
    return all(_ascends(accumulation_order(survey, stage, kinds)) for kinds in _ORDERS)


def accumulation_order(survey: Survey, stage: int, kinds: tuple[Kind, Kind]) -> list[int]:
    """The microbatches of the stage's actions of two kinds, in the order in which they run."""
    first, second = (survey.steps[kind][stage] for kind in kinds)
    if not first or not second:
        return list(first or second)
    both = [(step, m) for steps in (first, second) for m, step in steps.items()]
    return [m for _, m in sorted(both)]


def _ascends(order: list[int]) -> bool:
    return all(earlier < later for earlier, later in pairwise(order))
