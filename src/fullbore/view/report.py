"""A comparison of measured and predicted times as text."""

from __future__ import annotations

from fullbore.sim import Report
from fullbore.view.table import render_table


def render_report(report: Report, *, name: str) -> str:
    """The step's time, each kind of action's, and where each rank's went; in milliseconds."""
    rows: list[tuple[str, ...]] = [
        ("action", "samples", "predicted ms", "measured ms", "typically off")
    ]
    for row in report.actions:
        stage = "" if row.stage < 0 else str(row.stage)
        predicted = "-" if row.predicted is None else _ms(row.predicted)
        error = "-" if row.error is None else f"{row.error:.1%}"
        label = f"{stage}{row.kind.name}"
        rows.append((label, str(row.samples), predicted, _ms(row.median), error))
    heads = ("rank", "compute ms", "receiving", "sending", "overhead", "idle")
    ranks = [(str(rank), *map(_ms, spent)) for rank, spent in enumerate(report.ranks)]
    return "\n".join(
        [
            f"{name}: {report.steps} steps, {summarize(report)}\n",
            render_table(rows),
            render_table([heads, *ranks]),
        ]
    )


def summarize(report: Report) -> str:
    """The step's time, measured and predicted, in a line."""
    return (
        f"median {_ms(report.measured)} ms; predicted {_ms(report.predicted)} ms, "
        f"a step typically {report.error:.1%} off"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"
