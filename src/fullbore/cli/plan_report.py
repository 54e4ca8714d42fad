"""What ``fullbore plan`` says of a plan: a table, and why the winner wins."""

from __future__ import annotations

from fullbore.plan import Candidate, Joint, Plan
from fullbore.plan.reasons import LIMITS_BY, Reasons, reasons
from fullbore.sim import Costs, Idle

_HEADS = (
    "schedule",
    "placement",
    "stages/rank",
    "makespan",
    "bubble",
    "span",
    "peak",
    "above bound",
)
_STOPPED = {"deadline": ", then the deadline", "interrupt": ", then it was interrupted"}


def rows(found: Plan) -> list[tuple[str, ...]]:
    """A table of the candidates."""
    return [
        _HEADS,
        *(
            (
                candidate.schedule.name,
                candidate.placement.shape,
                str(candidate.stages_per_rank),
                f"{candidate.makespan:g}",
                f"{candidate.makespan_bubble_rate:.2%}",
                f"{candidate.span:g}",
                f"{max(candidate.peak):g}",
                f"{candidate.gap:z.2%}",
            )
            for candidate in found.candidates
        ),
    ]


def words(found: Plan, costs: Costs, joint: Joint | None) -> list[str]:
    """Why the first of them is that, and how it was found."""
    why, best = reasons(found, costs), found.best
    lines = [
        f"best: {_name(best)}. No schedule on this placement takes less than {best.bound:g}, for "
        f"{LIMITS_BY[why.bound_by]}"
    ]
    if found.bound < best.bound:
        lines.append(f"other placements that were tried could give {found.bound:g} at best")
    held = f"; it holds {max(best.peak):g}"
    lines.append(f"a rank idles {_idle(why.idle)}{'' if found.memory is None else held}")
    if found.memory is not None:
        lines[-1] += f" of {found.memory:g} allowed"
    if why.family is not None and why.family_idle is not None:
        gain = 1 - best.length / why.family.length
        lines.append(
            f"{gain:.2%} less than the best family that fits, {_name(why.family)}, where a rank "
            f"idles {_idle(why.family_idle)}"
        )
    lines += [] if joint is None else _split(joint)
    lines.append(
        f"effort {found.effort} reached{_STOPPED.get(found.stopped or '', '')}: "
        f"{found.evaluations} orders in {found.seconds:.1f} s, and {found.compile_seconds:.1f} s "
        f"to get ready; seed {found.seed}"
    )
    return [*lines, *(f"left out: {reason}" for reason in found.left_out)]


def facts(found: Plan, costs: Costs, joint: Joint | None) -> dict[str, object]:
    """All of it for programs."""
    names = ("bound", "objective", "memory", "seed", "effort", "evaluations", "seconds", "stopped")
    return {
        **{name: getattr(found, name) for name in names},
        "left_out": list(found.left_out),
        "candidates": [candidate_facts(candidate) for candidate in found.candidates],
        "why": _why(reasons(found, costs)),
        "partition": None if joint is None else _split_facts(joint),
    }


def candidate_facts(candidate: Candidate) -> dict[str, object]:
    """A candidate for programs."""
    return {
        "schedule": candidate.schedule.name,
        "placement": list(candidate.placement.ranks),
        "makespan": candidate.makespan,
        "makespan_bubble_rate": candidate.makespan_bubble_rate,
        "span": candidate.span,
        "span_bubble_rate": candidate.span_bubble_rate,
        "peak_memory": list(candidate.peak),
        "bound": candidate.bound,
        "gap": candidate.gap,
    }


def _name(candidate: Candidate) -> str:
    return (
        f"{candidate.schedule.name}, {candidate.placement.shape}, "
        f"{candidate.stages_per_rank} a rank"
    )


def _idle(idle: Idle) -> str:
    return (
        f"{sum(idle):.4g} on average: {idle.warm_up:.4g} until its first backward, "
        f"{idle.steady:.4g} in between, {idle.cool_down:.4g} after its last forward"
    )


def _split(joint: Joint) -> list[str]:
    split, best = joint.partition, joint.plan.best
    stages = ", ".join(
        f"{s.start}" if len(s) == 1 else f"{s.start}-{s.stop - 1}" for s in split.stages
    )
    tried = "" if joint.splits == 1 else f", the best of {joint.splits} splits"
    lines = [
        f"layers of the stages{tried}: {stages}. The busiest rank has {max(split.load):g} to do "
        "for a microbatch"
    ]
    even = joint.costs.even(best.placement)
    if even.stages == split.stages:
        return [*lines, "that is the split by number"]
    alike = f"split by number {max(even.load):g}"
    if joint.even is None:
        return [*lines, f"{alike}, for which nothing that fits was found"]
    longer = joint.even.length / best.length - 1 if best.length else 0.0
    told = f"{longer:.1%} longer" if longer >= 0 else f"{-longer:.1%} shorter; try --joint"
    return [*lines, f"{alike}, and the step would take {joint.even.length:g}, {told}"]


def _why(found: Reasons) -> dict[str, object]:
    family = found.family
    return {
        "bound_by": found.bound_by,
        "idle": found.idle._asdict(),
        "family": None if family is None else family.schedule.name,
        "family_idle": None if found.family_idle is None else found.family_idle._asdict(),
    }


def _split_facts(joint: Joint) -> dict[str, object]:
    split, even = joint.partition, joint.costs.even(joint.plan.best.placement)
    return {
        "stages": [[stage.start, stage.stop] for stage in split.stages],
        "load": list(split.load),
        "splits_tried": joint.splits,
        "even": {
            "stages": [[stage.start, stage.stop] for stage in even.stages],
            "load": list(even.load),
            "best": None if joint.even is None else candidate_facts(joint.even),
        },
    }
