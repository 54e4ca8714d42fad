"""How far a run has come."""

from __future__ import annotations

from collections.abc import Sequence

from fullbore.sim import Report
from fullbore.train.compare import Difference, worst
from fullbore.train.messages import Outcome, Record
from fullbore.train.planner import Replan
from fullbore.train.settings import Settings


class Progress:
    """Adds up the processes' records.

    Attributes:
        settings: of the run.
        first_step: how many steps were done before this run.
        step: how many steps are done.
        first_loss, loss: of the first and of the latest step, in nats a byte.
        held_out: the latest loss on held-out text, if there was an evaluation.
        seconds: what pipeline and optimizer took, all steps together.
        difference: the worst from the unpipelined model, and at which step that was.
        compared: how many tensors were compared.
        saved_at: the step of the latest checkpoint.
        outcome: how the run ends, once that is known.
        report: the latest steps' times, measured and predicted, once the run has ended.
        schedule: what runs now.
        replan: what came of planning, once it has.
    """

    def __init__(self, settings: Settings, first_step: int) -> None:
        self.settings, self.first_step, self.step = settings, first_step, first_step
        self.first_loss = self.loss = float("nan")
        self.held_out: float | None = None
        self.seconds = 0.0
        self.difference: Difference | None = None
        self.difference_step = 0
        self.compared = 0
        self.saved_at: int | None = None
        self.outcome: Outcome | None = None
        self.report: Report | None = None
        self.schedule = settings.schedule
        self.replan: Replan | None = None

    def add(self, records: Sequence[Record]) -> None:
        """Take in what all processes say of one step."""
        self.step = records[0].step
        (self.loss,) = (record.loss for record in records if record.loss is not None)
        if self.step == self.first_step + 1:
            self.first_loss = self.loss
        for record in records:
            self.held_out = self.held_out if record.held_out is None else record.held_out
            self.compared += record.compared
        # All of them wait for the slowest.
        self.seconds += max(record.seconds for record in records)
        found = worst(record.difference for record in records if record.difference is not None)
        latest = worst(d for d in (self.difference, found) if d is not None)
        if latest is not self.difference:
            self.difference, self.difference_step = latest, self.step

    @property
    def steps_done(self) -> int:
        """In this run."""
        return self.step - self.first_step

    @property
    def tokens_per_second(self) -> float:
        """Bytes trained on in a second of pipeline and optimizer; comparing is not counted."""
        recipe = self.settings.recipe
        tokens = self.steps_done * recipe.batch_size * recipe.size.sequence_length
        return tokens / self.seconds if self.seconds else 0.0
