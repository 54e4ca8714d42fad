"""A run that one script drives: the stages are in ``fullbore.controller``'s hands."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.optim import AdamW

from fullbore.controller import Engine, Factory, HostedStage, LocalEngine, PipelineParallelism
from fullbore.ir import Schedule
from fullbore.runtime import StepOutput
from fullbore.sim import Profile
from fullbore.train.footprint import Footprint, footprint
from fullbore.train.link import Link
from fullbore.train.messages import Outcome
from fullbore.train.model import GPT, build_model, loss_fn, split_layers
from fullbore.train.optimizer import Optimizer, State
from fullbore.train.rank import Trainer
from fullbore.train.settings import ModelSize, Recipe, Settings


def train_controlled(settings: Settings, link: Link) -> Outcome:
    """Train until the director ends the run. No process is left, however this ends.

    Raises:
        MissingExtra: the engine needs a package that is not installed.
        ExecutionError: a rank failed.
    """
    torch.set_num_threads(settings.threads)
    stages = DrivenStages(settings)
    try:
        return Trainer(settings, link, lambda: stages).run()
    finally:
        stages.close()


class DrivenStages:
    """All stages, wherever the engine has them; see ``fullbore.train.stages.Stages``.

    Args:
        settings: of the run; ``controller`` is the engine's name.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pp = self._connect(settings.schedule)

    def step(self, inputs: Tensor, target: Tensor) -> StepOutput:
        """One message to each process."""
        self._pp.run(inputs, target)
        assert self._pp.last is not None
        return self._pp.last

    def eval(self, inputs: Tensor, target: Tensor) -> StepOutput:
        """Likewise."""
        return self._pp.eval(inputs, target, return_outputs=False)

    def update(self, step: int) -> None:
        """Likewise."""
        self._pp.each_stage(_update, self._settings.recipe, step)

    def places(self) -> Mapping[str, int]:
        """Of all parameters."""
        each = self._pp.each_stage(_names)
        return {name: stage for stage, names in enumerate(each) for name in names}

    def gradients(self) -> Mapping[str, Tensor | None]:
        """Copies of all."""
        device = self._settings.device
        found = self._pp.gradients()
        return {name: None if g is None else g.to(device) for name, g in found.items()}

    def weights(self) -> Mapping[str, Tensor]:
        """Copies of all."""
        return self._pp.state_dict()

    def state(self) -> State:
        """Of all parameters."""
        each: list[State] = self._pp.each_stage(_state, self._settings.recipe)
        return {name: own for part in each for name, own in part.items()}

    def restore(self, weights: Mapping[str, Tensor], state: State) -> None:
        """Everything goes to every process, which takes what is its own."""
        self._pp.each_stage(_restore, self._settings.recipe, weights, state)

    def footprints(self) -> dict[int, Footprint]:
        """Found out where the stages are."""
        size, rows = self._settings.recipe.size, self._settings.microbatch_size
        return dict(enumerate(self._pp.each_stage(_footprint, size, rows)))

    def profile(self) -> Profile | None:
        """Of all ranks."""
        return self._pp.profile()

    def follow(self, schedule: Schedule) -> None:
        """With new processes, which take over what training has changed."""
        weights, state = self.weights(), self.state()
        self._pp.close()
        self._pp = self._connect(schedule)
        self.restore(weights, state)

    def close(self) -> None:
        """End the processes."""
        self._pp.close()

    def _connect(self, schedule: Schedule) -> PipelineParallelism:
        settings, recipe = self._settings, self._settings.recipe
        build = partial(Factory, build_model, recipe.size)
        layers = split_layers(recipe.size, schedule.num_stages, settings.split)
        rows = settings.microbatch_size
        return PipelineParallelism(
            schedule.num_ranks,
            [build(own, seed=recipe.seed, device=settings.device) for own in layers],
            schedule=schedule,
            batch_size=rows * schedule.num_microbatches,
            microbatch_size=rows,
            loss_fn=loss_fn,
            engine=_engine(settings),
            optimizers=partial(AdamW, lr=recipe.learning_rate),
            device=None if settings.device == "cpu" else settings.device,
            profile=True,
        )


def _engine(settings: Settings) -> Engine:
    if settings.controller == "local":
        return LocalEngine()
    from fullbore.controller.monarch import MonarchEngine

    assert settings.transport != "local"
    return MonarchEngine(transport=settings.transport, threads=settings.threads)


def _optimizer(stage: HostedStage, recipe: Recipe) -> Optimizer:
    assert isinstance(stage.optimizer, AdamW)
    return Optimizer([stage.module], recipe, adamw=stage.optimizer)


def _update(stage: HostedStage, recipe: Recipe, step: int) -> None:
    _optimizer(stage, recipe).step(step)


def _names(stage: HostedStage) -> list[str]:
    return [name for name, _ in stage.module.named_parameters()]


def _state(stage: HostedStage, recipe: Recipe) -> State:
    return _optimizer(stage, recipe).state()


def _restore(
    stage: HostedStage, recipe: Recipe, weights: Mapping[str, Tensor], state: State
) -> None:
    optimizer = _optimizer(stage, recipe)
    optimizer.load_weights(weights)
    optimizer.load_state(state)


def _footprint(stage: HostedStage, size: ModelSize, rows: int) -> Footprint:
    assert isinstance(stage.module, GPT)
    return footprint(stage.module, size, rows=rows)
