"""What a run has come to, for its user and for programs."""

from __future__ import annotations

import math

from fullbore.sim import unit_timeline
from fullbore.train.messages import Outcome
from fullbore.train.planner import Replan
from fullbore.train.progress import Progress
from fullbore.view.blocks import count
from fullbore.view.report import summarize


def facts(progress: Progress) -> dict[str, object]:
    """Everything, by name, as JSON can hold it. Losses are in nats a byte."""
    schedule = progress.schedule
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
        "plan": None if progress.replan is None else _plan_facts(progress, progress.replan),
    }


def lines(progress: Progress) -> list[str]:
    """The same in words; the loss comes last. Nothing of nothing."""
    if not progress.steps_done:
        return []
    parts = (
        _work(progress),
        _measured(progress),
        _gain(progress),
        _check(progress),
        _loss(progress),
    )
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


def plan_lines(found: Replan) -> list[str]:
    """What was planned, and what is expected of it."""
    before, best = found.before.name, found.plan.best
    room = "" if found.fits else ", which does not fit the memory"
    expected = f"{before}{room}: predicted {_ms(found.predicted_before)}"
    if found.family is not None and found.predicted_family is not None:
        expected += f"; best family that fits, {found.family}: {_ms(found.predicted_family)}"
    seconds = found.plan.seconds + found.plan.compile_seconds
    if found.after is found.before:
        return [f"planned after step {found.step} in {seconds:.1f} s: {before} stays; {expected}"]
    return [
        f"planned after step {found.step} in {seconds:.1f} s: predicted {_ms(found.predicted)} a "
        f"step, at most {best.gap:.1%} above the least possible; a rank holds "
        f"{max(best.peak) / 1e6:,.1f} MB",
        expected,
    ]


def _gain(progress: Progress) -> str | None:
    """Before and after planning."""
    found, now = progress.replan, progress.report
    if found is None or now is None or found.after is found.before:
        return None
    predicted = 1 - found.predicted / found.predicted_before
    text = f"plan: {_change(predicted)} than {found.before.name} predicted"
    if progress.settings.takes_turns:
        return f"{text}; ranks in one process take turns, so that no gain can be measured"
    measured = _change(1 - now.measured / found.measured)
    return (
        f"{text}, {measured} measured: {_ms(found.measured)} before "
        f"({_ms(found.predicted_before)} predicted), {_ms(now.measured)} after "
        f"({_ms(found.predicted)} predicted)"
    )


def _change(saved: float) -> str:
    return f"{saved:.1%} less" if saved >= 0 else f"{-saved:.1%} more"


def _plan_facts(progress: Progress, found: Replan) -> dict[str, object]:
    now, best = progress.report, found.plan.best
    return {
        "step": found.step,
        "before": found.before.name,
        "before_fits": found.fits,
        "after": found.after.name,
        "memory": found.plan.memory,
        "peak_memory": list(best.peak),
        "predicted_before": found.predicted_before,
        "predicted_after": found.predicted,
        "measured_before": found.measured,
        "measured_after": None if now is None else now.measured,
        "best_family": found.family,
        "predicted_best_family": found.predicted_family,
        "bound": best.bound,
        "planning_seconds": found.plan.seconds,
    }


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _work(progress: Progress) -> str:
    schedule = progress.schedule
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
    if found is None or progress.settings.takes_turns:
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
