"""What each process of a run does: train its stages step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from fullbore.ir import Schedule
from fullbore.runtime import Transport
from fullbore.train.check import Check
from fullbore.train.checkpoint import pack, unpack
from fullbore.train.compare import Difference, worst
from fullbore.train.data import Batch, Text
from fullbore.train.link import ChildLink, Link
from fullbore.train.messages import (
    Measured,
    Outcome,
    Ready,
    Record,
    Sounding,
    Start,
    State,
    Verdict,
)
from fullbore.train.settings import Settings
from fullbore.train.stages import OwnStages, Stages


def train_child(
    transport: Transport,
    rank: int,
    report: Callable[[Any], None],
    settings: Settings,
    replies: Sequence[Connection],
) -> Outcome:
    """The function that ``launch`` calls in each process."""
    return train_ranks(transport, [rank], settings, ChildLink(report, rank, replies))


def train_ranks(
    transport: Transport, ranks: Collection[int], settings: Settings, link: Link
) -> Outcome:
    """Train the stages of ``ranks`` until the director ends the run."""
    return Trainer(settings, link, partial(OwnStages, transport, ranks, settings)).run()


class Trainer:
    """Trains stages, compares and evaluates them as the director says.

    Args:
        settings: of the run.
        link: to the director.
        make_stages: called once all processes are there.
    """

    def __init__(self, settings: Settings, link: Link, make_stages: Callable[[], Stages]) -> None:
        self._settings, self._link = settings, link
        self._device = torch.device(settings.device)
        told = Ready(
            settings.recipe,
            settings.schedule,
            settings.steps,
            settings.eval_every,
            settings.check,
            settings.split,
            settings.planning,
        )
        start: Start = link.ask(told)
        self._text, self._done = Text(start.text, start.num_train), start.step
        self._stages, self._check = make_stages(), None
        if settings.check:
            self._check = Check(self._stages.places(), settings, link, device=self._device)
        if start.state is not None:
            self._restore(start.state)

    def run(self) -> Outcome:
        """Until the director ends the run."""
        while True:
            verdict = self.step()
            if verdict.save:
                self._link.ask(self.state())
            if verdict.outcome is not None:
                self._link.ask(self._measured())
                return verdict.outcome
            if verdict.plan:
                self.replan()

    def step(self) -> Verdict:
        """One step of training, compared and evaluated where that is due."""
        stages = self._stages
        inputs, target = self._to_device(self._text.batch(self._settings.recipe, self._done))
        began = time.perf_counter()
        out = stages.step(inputs, target)
        seconds = time.perf_counter() - began
        differences: list[Difference] = []
        if self._check is not None:
            differences = self._check.compare(inputs, target, stages.gradients(), out.losses)
        began = time.perf_counter()
        stages.update(self._done)
        seconds += time.perf_counter() - began
        if self._check is not None:
            self._check.update(stages.weights, self._done)
        self._done += 1
        record = Record(
            self._done,
            None if out.loss is None else out.loss.item(),
            seconds,
            self._evaluate() if self._settings.evaluates_after(self._done) else None,
            worst(differences),
            len(differences),
        )
        verdict: Verdict = self._link.ask(record)
        return verdict

    def state(self) -> State:
        """Weights and optimizer state of the stages held here."""
        return State(pack({"model": self._stages.weights(), "optimizer": self._stages.state()}))

    def replan(self) -> None:
        """Let the director plan, and go on with what it says: the same stages, in another order."""
        held = self._stages.footprints()
        found: Schedule | None = self._link.ask(Sounding(self._stages.profile(), held))
        if found is None:
            return
        self._stages.follow(found)
        if self._check is not None:
            self._check.follow(found)

    def _measured(self) -> Measured:
        stages, writes = self._stages, self._settings.profile is not None
        return Measured(stages.profile(), stages.footprints() if writes else {})

    def _restore(self, packed: bytes) -> None:
        state = unpack(packed)
        self._stages.restore(state["model"], state["optimizer"])
        if self._check is not None:
            self._check.restore(state["model"], state["optimizer"])

    def _evaluate(self) -> float | None:
        """The mean loss over the held-out batches, on the rank of the last stage."""
        losses = []
        for batch in self._text.held_out(self._settings.recipe):
            out = self._stages.eval(*self._to_device(batch))
            if out.loss is not None:
                losses.append(out.loss.item())
        return sum(losses) / len(losses) if losses else None

    def _to_device(self, batch: Batch) -> Batch:
        inputs, target = batch
        return inputs.to(self._device), target.to(self._device)
