"""``fullbore plan --frontier``."""

from __future__ import annotations

from fullbore.cli.plan_report import candidate_facts
from fullbore.plan import Candidate, Frontier, Point
from fullbore.view.frontier import Front, Spot


def rows(found: Frontier) -> list[tuple[str, ...]]:
    """A table of the limits."""
    heads = ("memory", "best", "placement", "stages/rank", "makespan", "bubble", "least bubble")
    return [(*heads, "above bound"), *(_row(found, point) for point in found.points)]


def _row(found: Frontier, point: Point) -> tuple[str, ...]:
    best = point.best
    if best is None:
        return (f"{point.memory:g}", "nothing fits", *[""] * 6)
    return (
        f"{point.memory:g}",
        best.schedule.name,
        best.placement.shape,
        str(best.stages_per_rank),
        f"{best.makespan:g}",
        f"{found.bubble(best.length):.2%}",
        f"{found.bubble(point.bound):.2%}",
        f"{point.gap:.2%}",
    )


def facts(found: Frontier) -> dict[str, object]:
    """All of it for programs."""
    return {
        "points": [
            {
                "memory": point.memory,
                "bound": None if point.best is None else point.bound,
                "bubble_rate": None if point.best is None else found.bubble(point.best.length),
                "least_bubble_rate": None if point.best is None else found.bubble(point.bound),
                "gap": None if point.best is None else point.gap,
                "best": None if point.best is None else candidate_facts(point.best),
                "effort": None if point.plan is None else point.plan.effort,
                "reason": point.reason or None,
            }
            for point in found.points
        ],
        "families": [candidate_facts(family) for family in found.families],
    }


def drawn(found: Frontier, *, title: str, in_bytes: bool) -> Front:
    """What there is to draw."""
    points = [(point, point.best) for point in found.points if point.best is not None]
    scale, unit = _unit(max(point.memory for point, _ in points), in_bytes=in_bytes)
    return Front(
        title=title,
        plans=[
            Spot(point.memory / scale, found.bubble(best.length), _label(best))
            for point, best in points
        ],
        bounds=[(point.memory / scale, found.bubble(point.bound)) for point, _ in points],
        families=[
            Spot(max(family.peak) / scale, found.bubble(family.length), _label(family))
            for family in found.families
        ],
        unit=unit,
    )


def _label(candidate: Candidate) -> str:
    name, count = candidate.schedule.name, candidate.stages_per_rank
    shown = candidate.placement.shape if name == "plan" else name
    return f"{shown} {count}" if count > 1 else shown


def _unit(most: float, *, in_bytes: bool) -> tuple[float, str]:
    if not in_bytes:
        return 1.0, "microbatches' activations"
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if most >= scale:
            return scale, unit
    return 1.0, "bytes"
