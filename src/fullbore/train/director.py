"""Who decides: takes every process's account of a step, and tells all what to do next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fullbore.errors import ParameterError
from fullbore.ir import Schedule
from fullbore.sim import report
from fullbore.train.checkpoint import Checkpoint, pack, save_checkpoint, unpack
from fullbore.train.data import Text
from fullbore.train.footprint import Footprint
from fullbore.train.measured import write_profile
from fullbore.train.messages import (
    Measured,
    Outcome,
    Ready,
    Record,
    Sounding,
    Start,
    State,
    Verdict,
    Weights,
)
from fullbore.train.planner import Planner, Replan
from fullbore.train.progress import Progress
from fullbore.train.screen import Screen
from fullbore.train.settings import Settings
from fullbore.train.summary import plan_lines


class Director:
    """Answers the processes of a run.

    Args:
        settings: of the run.
        text: what is trained on.
        checkpoint: what is gone on from, if anything.
        screen: is told of everything.
    """

    def __init__(
        self, settings: Settings, text: Text, checkpoint: Checkpoint | None, screen: Screen
    ) -> None:
        self._settings, self._text, self._screen = settings, text, screen
        self._checkpoint = checkpoint
        self._digest = text.digest()
        self.progress = Progress(settings, 0 if checkpoint is None else checkpoint.step)
        self._planner: Planner | None = None
        if settings.planning is not None:
            self._planner = Planner(settings, settings.planning, self.progress.step)
        self._stop: Outcome | None = None

    def stop(self, outcome: Outcome) -> None:
        """End the run after the step under way; for signal handlers."""
        self._stop = outcome
        self._screen.stopping()

    def answer(self, messages: Sequence[Any]) -> Any:
        """The reply to what all processes ask at once, one message each, in rank order."""
        match messages[0]:
            case Ready():
                return self._start(messages)
            case Record():
                return self._judge(messages)
            case State():
                return self._save([unpack(message.data) for message in messages])
            case Sounding():
                return self._plan(messages)
            case Measured():
                return self._measure(messages)
            case Weights():
                return [message.data for message in messages]
            case other:
                raise AssertionError(f"nobody asks with {other!r}")

    def _start(self, messages: Sequence[Ready]) -> Start:
        if any(message != messages[0] for message in messages):
            raise ParameterError("the processes were started with different options")
        text, held = self._text, self._checkpoint
        self._screen.begin(self.progress)
        if held is None:
            return Start(text.data, text.num_train, None, 0)
        if held.text != self._digest:
            self._screen.note("the checkpoint was trained on another text")
        state = pack({"model": held.model, "optimizer": held.optimizer})
        # It was only held for this.
        self._checkpoint = None
        return Start(text.data, text.num_train, state, held.step)

    def _judge(self, records: Sequence[Record]) -> Verdict:
        progress, settings = self.progress, self._settings
        progress.add(records)
        progress.outcome = self._outcome()
        self._screen.show(progress)
        if progress.outcome in (Outcome.MISMATCH, Outcome.DIVERGED):
            # The checkpoint before this one is worth more.
            return Verdict(save=False, outcome=progress.outcome)
        save = settings.saves_after(progress.step)
        if settings.save is not None and progress.outcome is not None:
            save = True
        plan = self._planner is not None and self._planner.due(progress.step)
        return Verdict(save, progress.outcome, plan)

    def _plan(self, messages: Sequence[Sounding]) -> Schedule | None:
        assert self._planner is not None
        progress = self.progress
        (profile,) = (message.profile for message in messages if message.profile is not None)
        found = self._planner.go_on(
            profile,
            _footprints(messages),
            step=progress.step,
            stopped=lambda: self._stop is not None,
        )
        schedule = found.after if isinstance(found, Replan) else found
        if isinstance(found, Replan):
            progress.replan = found
            for line in plan_lines(found):
                self._screen.note(line)
        running, progress.schedule = progress.schedule, schedule
        return None if schedule == running else schedule

    def _measure(self, messages: Sequence[Measured]) -> None:
        (profile,) = (message.profile for message in messages if message.profile is not None)
        self.progress.report = report(profile)
        if self._settings.profile is not None:
            written = write_profile(
                profile,
                _footprints(messages),
                self._settings.profile,
                report=self.progress.report,
                replan=self.progress.replan,
            )
            self._screen.note(f"wrote {', '.join(written)} to {self._settings.profile}")

    def _outcome(self) -> Outcome | None:
        progress = self.progress
        if progress.difference is not None and progress.difference.wrong:
            return Outcome.MISMATCH
        if not math.isfinite(progress.loss):
            return Outcome.DIVERGED
        if progress.step == self._settings.steps:
            return Outcome.FINISHED
        return self._stop

    def _save(self, states: Sequence[dict[str, Any]]) -> None:
        path, settings = self._settings.save, self._settings
        assert path is not None
        model = {name: value for state in states for name, value in state["model"].items()}
        optimizer = {name: value for state in states for name, value in state["optimizer"].items()}
        step = self.progress.step
        save_checkpoint(path, Checkpoint(settings.recipe, step, self._digest, model, optimizer))
        self.progress.saved_at = step
        self._screen.note(f"saved {path} after step {step}")


def _footprints(messages: Sequence[Sounding] | Sequence[Measured]) -> dict[int, Footprint]:
    """Of all stages."""
    return {stage: held for message in messages for stage, held in message.footprints.items()}
