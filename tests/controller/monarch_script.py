"""Scripts as one writes them for Monarch's pipelining. Only the first import is another one."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from fullbore.controller import PipelineParallelism, get_loss_impl  # monarch.parallel.pipelining

WIDTH, BATCH, MICROBATCH, STEPS = 8, 8, 2, 3


class Chunk(nn.Module):
    """A stage of Monarch's kind."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, input_tensor: Tensor) -> Tensor:
        return self.linear(input_tensor).tanh()  # type: ignore[no-any-return]


def make_chunks(count: int) -> list[Chunk]:
    torch.manual_seed(0)
    return [Chunk() for _ in range(count)]


def make_batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)


CONFIG = SimpleNamespace(
    weight_decay=0.1,
    learning_rate=0.01,
    beta1=0.9,
    beta2=0.95,
    device_type="cpu",
    optimizer="adamw",
)


def config_fn(
    weight_decay: float,
    learning_rate: float,
    betas: tuple[float, float],
    device_type: str,
    optimizer: str,
    params: Any,
) -> torch.optim.Optimizer:
    assert (device_type, optimizer) == ("cpu", "adamw")
    return torch.optim.AdamW(params, lr=learning_rate, betas=betas, weight_decay=weight_decay)


def make_pipeline(meshes: Any, num_stages: int, **options: Any) -> PipelineParallelism:
    stages = [[chunk] for chunk in make_chunks(num_stages)]
    pipeline = PipelineParallelism(
        meshes=meshes,
        stages=stages,
        schedule="dora-dfs",
        batch_size=BATCH,
        microbatch_size=MICROBATCH,
        loss_fn=nn.MSELoss(reduction="none"),
        loss_list=[],
        **options,
    )
    pipeline.initialize()
    return pipeline


def train(pipeline: PipelineParallelism) -> tuple[list[Tensor], list[Chunk]]:
    """Losses, and a model with the parameters in the end."""
    x, y = make_batch()
    optimizers = pipeline.configure_optimizers(CONFIG, config_fn)
    losses = []
    for _ in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses.append(pipeline.run(x, y))
        for optimizer in optimizers:
            optimizer.step()
    ref_model = make_chunks(len(pipeline.stages))
    pipeline.copy_params_to_new_model(ref_model)
    return losses, ref_model


def dispatch(pipeline: PipelineParallelism) -> tuple[Any, Tensor]:
    """What ``run`` does, by hand: what ran when, and the loss."""
    microbatch_x, microbatch_y = pipeline.split_inputs_outputs(*make_batch())
    ran = pipeline.dispatch_pp_schedule(
        pipeline_order=pipeline.all_rank_actions,
        stage_to_rank=pipeline.stage_to_rank,
        num_stages=len(pipeline.stages),
        microbatch_x=microbatch_x,
        microbatch_y=microbatch_y,
    )
    return ran, get_loss_impl(pipeline.loss_list)


def run_actions(pipeline: PipelineParallelism, order: Sequence[Any]) -> Tensor:
    """A schedule action by action; the loss."""
    microbatch_x, microbatch_y = pipeline.split_inputs_outputs(*make_batch())
    for action in order:
        pipeline.run_action(action, microbatch_x, microbatch_y)
    return get_loss_impl(pipeline.loss_list)
