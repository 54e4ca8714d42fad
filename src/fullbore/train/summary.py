"""What a run has come to, for its user and for programs."""

from __future__ import annotations

import math

from fullbore.sim import unit_timeline
from fullbore.train.messages import Outcome
from fullbore.train.progress import Progress
from fullbore.view.blocks import count
from fullbore.view.report import summarize


def facts(progress: Progress) -> dict[str, object]:
    """Everything, by name, as JSON can hold it. Losses are in nats a byte."""
    schedule = progress.settings.schedule
    saved = progress.saved_at is not None
    return {
        "outcome": None if progress.outcome is None else progress.outcome.value,
        "schedule": schedule.name,
        "num_ranks": schedule.num_ranks,
        "num_stages": schedule.num_stages,
        "num_microbatches": schedule.num_microbatches,
        "bubble_rate": unit_timeline(schedule).makespan_bubble_rate,
        "first_step": progress.first_step + 1,
        "last_step": progress.step,
        "first_loss": _number(progress.first_loss),
        "last_loss": _number(progress.loss),
        "held_out_loss": _number(progress.held_out),
        "tokens_per_second": progress.tokens_per_second,
        "checkpoint": str(progress.settings.save) if saved else None,
        "checkpoint_step": progress.saved_at,
        "check": _check_facts(progress),
        "step_seconds": _times(progress),
    }


def lines(progress: Progress) -> list[str]:
    """The same in words; the loss comes last. Nothing of nothing."""
    if not progress.steps_done:
        return []
    parts = (_work(progress), _measured(progress), _check(progress), _loss(progress))
    return [line for line in parts if line]


def complaint(progress: Progress) -> str | None:
    """What went wrong, if anything did."""
    if progress.outcome is Outcome.MISMATCH:
        return (
            f"step {progress.difference_step}: the pipeline differs from the unpipelined model: "
            f"{progress.difference}"
        )
    if progress.outcome is Outcome.DIVERGED:
        return f"step {progress.step}: the loss is {progress.loss}; try a smaller --lr"
    if progress.outcome is Outcome.FINISHED:
        return None
    interrupted = f"interrupted after step {progress.step}"
    if progress.saved_at is not None:
        path = progress.settings.save
        return f"{interrupted}; go on from step {progress.saved_at} with --resume {path}"
    if progress.settings.save is not None:
        return f"{interrupted}; nothing is saved"
    return f"{interrupted}; --save would have kept it"


def _work(progress: Progress) -> str:
    schedule = progress.settings.schedule
    shape = ", ".join(
        (
            count(schedule.num_ranks, "rank"),
            count(schedule.num_stages, "stage"),
            count(schedule.num_microbatches, "microbatch", "microbatches"),
        )
    )
    idle = unit_timeline(schedule).makespan_bubble_rate
    return (
        f"{schedule.name}: {shape}, {idle:.1%} bubble at unit costs; "
        f"{count(progress.steps_done, 'step')}, {progress.tokens_per_second:,.0f} tokens/s"
    )


def _measured(progress: Progress) -> str | None:
    """Of ranks that ran side by side: in one process, they took turns."""
    found = progress.report
    if found is None or progress.settings.transport == "local":
        return None
    return f"measured: pipeline steps of {summarize(found)}, from the costs of their actions"


def _times(progress: Progress) -> dict[str, float] | None:
    found = progress.report
    if found is None:
        return None
    return {"measured": found.measured, "predicted": found.predicted, "error": found.error}


def _check(progress: Progress) -> str | None:
    found = progress.difference
    if found is None:
        return None
    if found.absolute == 0:
        return (
            f"check: all {progress.compared:,} losses and gradients equal the unpipelined model's, "
            "bit for bit (largest difference 0)"
        )
    return (
        f"check: {progress.compared:,} losses and gradients; the largest difference from the "
        f"unpipelined model is {found}, at step {progress.difference_step}"
    )


def _loss(progress: Progress) -> str:
    held_out = "" if progress.held_out is None else f"; {progress.held_out:.3f} on held-out text"
    return (
        f"loss: {progress.first_loss:.3f} at step {progress.first_step + 1}, {progress.loss:.3f} "
        f"at step {progress.step}{held_out}"
    )


def _check_facts(progress: Progress) -> dict[str, object] | None:
    found = progress.difference
    if found is None:
        return None
    return {
        "equal": found.absolute == 0,
        "wrong": found.wrong,
        "compared": progress.compared,
        "largest_difference": _number(found.absolute),
        "relative": _number(found.relative),
        "where": found.name,
        "step": progress.difference_step,
    }


def _number(value: float | None) -> float | None:
    """JSON has no infinities."""
    return value if value is not None and math.isfinite(value) else None
