"""What each process of a run does: build its stages, and train them step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from fullbore.ir import Schedule
from fullbore.runtime import Pipeline, Stage, Transport
from fullbore.sim import Profile
from fullbore.train.check import Check
from fullbore.train.checkpoint import pack, unpack
from fullbore.train.compare import Difference, worst
from fullbore.train.data import Batch, Text
from fullbore.train.footprint import footprint
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
from fullbore.train.model import build_model, loss_fn, split_layers
from fullbore.train.optimizer import Optimizer
from fullbore.train.settings import Settings


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
    trainer = Trainer(transport, ranks, settings, link)
    while True:
        verdict = trainer.step()
        if verdict.save:
            link.ask(trainer.state())
        if verdict.outcome is not None:
            link.ask(trainer.measured())
            return verdict.outcome
        if verdict.plan:
            trainer.replan()


class Trainer:
    """The stages of some ranks, and what trains, compares and evaluates them."""

    def __init__(
        self, transport: Transport, ranks: Collection[int], settings: Settings, link: Link
    ) -> None:
        schedule, recipe = settings.schedule, settings.recipe
        self._settings, self._link = settings, link
        self._device = torch.device(settings.device)
        told = Ready(
            recipe,
            schedule,
            settings.steps,
            settings.eval_every,
            settings.check,
            settings.split,
            settings.planning,
        )
        start: Start = link.ask(told)
        self._text, self._done = Text(start.text, start.num_train), start.step
        layers = split_layers(recipe.size, schedule.num_stages, settings.split)
        parts = {
            stage: build_model(recipe.size, layers[stage], seed=recipe.seed, device=self._device)
            for stage, rank in enumerate(schedule.placement.ranks)
            if rank in ranks
        }
        self._parts, self._transport = parts, transport
        self._pipeline = self._connect(schedule)
        self._optimizer = Optimizer(parts.values(), recipe)
        self._check = Check(parts, settings, link, device=self._device) if settings.check else None
        if start.state is not None:
            self._restore(start.state)

    def step(self) -> Verdict:
        """One step of training, compared and evaluated where that is due."""
        inputs, target = self._to_device(self._text.batch(self._settings.recipe, self._done))
        began = time.perf_counter()
        out = self._pipeline.step(inputs, target=target)
        seconds = time.perf_counter() - began
        differences: list[Difference] = []
        if self._check is not None:
            differences = self._check.compare(inputs, target, self._optimizer, out.losses)
        began = time.perf_counter()
        self._optimizer.step(self._done)
        seconds += time.perf_counter() - began
        if self._check is not None:
            self._check.update(self._optimizer, self._done)
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
        optimizer = self._optimizer
        return State(pack({"model": optimizer.weights(), "optimizer": optimizer.state()}))

    def measured(self) -> Measured:
        """When the latest steps' actions ran."""
        return Measured(self._profile())

    def replan(self) -> None:
        """Let the director plan, and go on with what it says: the same stages, in another order."""
        size, schedule = self._settings.recipe.size, self._settings.schedule
        rows = -(-self._settings.recipe.batch_size // schedule.num_microbatches)
        held = {stage: footprint(part, size, rows=rows) for stage, part in self._parts.items()}
        found: Schedule | None = self._link.ask(Sounding(self._profile(), held))
        if found is None:
            return
        self._pipeline = self._connect(found)
        if self._check is not None:
            self._check.follow(found)

    def _profile(self) -> Profile | None:
        """That of all ranks, where rank 0 is."""
        profile = self._pipeline.profile()
        return profile if self._pipeline.ranks[0] == 0 else None

    def _connect(self, schedule: Schedule) -> Pipeline:
        stages = [Stage(part, stage, schedule.num_stages) for stage, part in self._parts.items()]
        return Pipeline(stages, schedule, loss_fn=loss_fn, transport=self._transport, profile=True)

    def _restore(self, packed: bytes) -> None:
        state = unpack(packed)
        optimizers = [self._optimizer] + ([self._check.optimizer] if self._check else [])
        for optimizer in optimizers:
            optimizer.load_weights(state["model"])
            optimizer.load_state(state["optimizer"])

    def _evaluate(self) -> float | None:
        """The mean loss over the held-out batches, on the rank of the last stage."""
        losses = []
        for batch in self._text.held_out(self._settings.recipe):
            inputs, target = self._to_device(batch)
            out = self._pipeline.eval(inputs, target=target, return_outputs=False)
            if out.loss is not None:
                losses.append(out.loss.item())
        return sum(losses) / len(losses) if losses else None

    def _to_device(self, batch: Batch) -> Batch:
        inputs, target = batch
        return inputs.to(self._device), target.to(self._device)
