"""The stages that a process trains, and their optimizer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import torch
from torch import Tensor

from fullbore.ir import Schedule
from fullbore.runtime import Pipeline, Stage, StepOutput, Transport
from fullbore.sim import Profile
from fullbore.train.footprint import Footprint, footprint
from fullbore.train.model import build_model, loss_fn, split_layers
from fullbore.train.optimizer import Optimizer, State
from fullbore.train.settings import Settings


class Stages(Protocol):
    """Some or all stages of the model, wherever they are. Tensors go by the unsplit model's
    names."""

    def step(self, inputs: Tensor, target: Tensor) -> StepOutput:
        """Forward and backward over a batch."""

    def eval(self, inputs: Tensor, target: Tensor) -> StepOutput:
        """Losses alone."""

    def update(self, step: int) -> None:
        """The optimizer's part of step ``step``; the gradients are forgotten."""

    def places(self) -> Mapping[str, int]:
        """The stage of each parameter."""

    def gradients(self) -> Mapping[str, Tensor | None]:
        """Of each parameter; they may share the memory."""

    def weights(self) -> Mapping[str, Tensor]:
        """Of the model; they may share the memory."""

    def state(self) -> State:
        """Of the optimizer; it may share the memory."""

    def restore(self, weights: Mapping[str, Tensor], state: State) -> None:
        """Take over what these stages need of them."""

    def footprints(self) -> dict[int, Footprint]:
        """What each stage holds of a microbatch."""

    def profile(self) -> Profile | None:
        """That of all ranks, from the process of rank 0."""

    def follow(self, schedule: Schedule) -> None:
        """From now on run this schedule, which leaves the stages where they are."""


class OwnStages:
    """The stages of some ranks, in this process.

    Args:
        transport: to the other ranks.
        ranks: that this process plays.
        settings: of the run.
    """

    def __init__(self, transport: Transport, ranks: Collection[int], settings: Settings) -> None:
        self._settings, self._transport = settings, transport
        schedule, recipe = settings.schedule, settings.recipe
        layers = split_layers(recipe.size, schedule.num_stages, settings.split)
        device = torch.device(settings.device)
        self._parts = {
            stage: build_model(recipe.size, layers[stage], seed=recipe.seed, device=device)
            for stage, rank in enumerate(schedule.placement.ranks)
            if rank in ranks
        }
        self.follow(schedule)
        self._optimizer = Optimizer(self._parts.values(), recipe)

    def step(self, inputs: Tensor, target: Tensor) -> StepOutput:
        """See ``Stages``; so for all."""
        return self._pipeline.step(inputs, target=target)

    def eval(self, inputs: Tensor, target: Tensor) -> StepOutput:
        """Losses on the rank of the last stage."""
        return self._pipeline.eval(inputs, target=target, return_outputs=False)

    def update(self, step: int) -> None:
        """Of the stages here."""
        self._optimizer.step(step)

    def places(self) -> Mapping[str, int]:
        """Of the stages here."""
        return {
            name: stage
            for stage, part in self._parts.items()
            for name, _ in part.named_parameters()
        }

    def gradients(self) -> Mapping[str, Tensor | None]:
        """They share the memory."""
        return self._optimizer.gradients()

    def weights(self) -> Mapping[str, Tensor]:
        """They share the memory."""
        return self._optimizer.weights()

    def state(self) -> State:
        """It shares the memory."""
        return self._optimizer.state()

    def restore(self, weights: Mapping[str, Tensor], state: State) -> None:
        """Copies."""
        self._optimizer.load_weights(weights)
        self._optimizer.load_state(state)

    def footprints(self) -> dict[int, Footprint]:
        """Of the stages here."""
        size, rows = self._settings.recipe.size, self._settings.microbatch_size
        return {stage: footprint(part, size, rows=rows) for stage, part in self._parts.items()}

    def profile(self) -> Profile | None:
        """Every rank asks for it."""
        profile = self._pipeline.profile()
        return profile if self._pipeline.ranks[0] == 0 else None

    def follow(self, schedule: Schedule) -> None:
        """All ranks do."""
        stages = [Stage(part, stage, schedule.num_stages) for stage, part in self._parts.items()]
        self._pipeline = Pipeline(
            stages, schedule, loss_fn=loss_fn, transport=self._transport, profile=True
        )
