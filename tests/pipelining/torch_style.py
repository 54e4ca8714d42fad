"""Custom functions as they are written for torch: each takes its input from the schedule, hands its
output over, and keeps the loss and the count."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any

from tests.pipelining.programs import DEVICE, batches, layers, mean_square
from torch import Tensor


class Functions:
    """One for each kind, and how often each was called."""

    def __init__(self, schedules: Any) -> None:
        self.schedules = schedules
        self.calls: list[str] = []

    def register(self, schedule: Any, *kinds: str) -> None:
        kind = self.schedules._ComputationType
        table = {
            "F": (kind.FORWARD, self.forward),
            "B": (kind.FULL_BACKWARD, self.backward),
            "I": (kind.BACKWARD_INPUT, self.backward),
            "W": (kind.BACKWARD_WEIGHT, self.weight),
            "OVERLAP_F_B": (kind.OVERLAP_F_B, self.overlap),
            "REDUCE_GRAD": (kind.REDUCE_GRAD, self.reduce),
        }
        for name in kinds:
            schedule.register_custom_function(*table[name])

    def forward(self, action: Any, ctx: Any) -> None:
        self.calls.append(str(action))
        schedule, index, mb = ctx.schedule_ref, action.stage_index, action.microbatch_index
        stages = {stage.stage_index: stage for stage in schedule._stages}
        stage = stages[index]
        if not stage.is_first and index - 1 not in stages:
            assert (index, mb) in schedule.fwd_recv_ops, f"Computing {action} before its input"
            self.schedules._wait_batch_p2p(schedule.fwd_recv_ops.pop((index, mb)))
        output = stage.forward_one_chunk(
            mb, ctx.arg_mbs[mb], ctx.kwarg_mbs[mb], save_forward_output=True
        )
        schedule._maybe_compute_loss(stage, output, ctx.target_mbs, mb)
        if index + 1 in stages:
            stages[index + 1].set_local_fwd_input(output, mb)

    def backward(self, action: Any, ctx: Any) -> None:
        self.calls.append(str(action))
        schedule, index, mb = ctx.schedule_ref, action.stage_index, action.microbatch_index
        stages = {stage.stage_index: stage for stage in schedule._stages}
        stage = stages[index]
        full = action.computation_type == self.schedules._ComputationType.FULL_BACKWARD
        if not stage.is_last and index + 1 not in stages:
            self.schedules._wait_batch_p2p(schedule.bwd_recv_ops.pop((index, mb)))
        loss = schedule._maybe_get_loss(stage, mb)
        assert (loss is not None) == stage.is_last
        schedule.backward_counter[index] += full
        last = schedule.backward_counter[index] == schedule._n_microbatches
        stage.backward_one_chunk(mb, loss=loss, full_backward=full, last_backward=last)
        if index - 1 in stages:
            stages[index - 1].set_local_bwd_input(stage.get_local_bwd_output(mb), mb)

    def weight(self, action: Any, ctx: Any) -> None:
        self.calls.append(str(action))
        schedule, index = ctx.schedule_ref, action.stage_index
        schedule.backward_counter[index] += 1
        last = schedule.backward_counter[index] == schedule._n_microbatches
        (stage,) = [stage for stage in schedule._stages if stage.stage_index == index]
        stage.backward_weight_one_chunk(action.microbatch_index, last_backward=last)

    def overlap(self, action: Any, ctx: Any) -> None:
        """Forward and backward at once, on two threads."""
        assert action.sub_actions is not None
        forward, backward = action.sub_actions
        failed: list[BaseException] = []

        def run() -> None:
            try:
                self.backward(backward, ctx)
            except BaseException as error:
                failed.append(error)
                raise

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.forward(forward, ctx)
        thread.join()
        assert not failed

    def reduce(self, action: Any, ctx: Any) -> None:
        self.calls.append(str(action))
        schedule = ctx.schedule_ref
        (stage,) = [s for s in schedule._stages if s.stage_index == action.stage_index]
        stage.perform_reduce_grad(schedule._n_microbatches if schedule.scale_grads else 1)


def custom(rank: int, size: int, api: str, name: str, kinds: tuple[str, ...]) -> Any:
    """Two stages a rank, with custom functions; gradients, losses and the number of calls."""
    pipelining, schedules = import_module(api), import_module(f"{api}.schedules")
    number = 2 * size
    vee = name in ("ZBVZeroBubble", "DualPipeV")
    own = [rank, number - 1 - rank if vee else rank + size]
    modules = layers(number)
    stages = [pipelining.PipelineStage(modules[s], s, number, DEVICE) for s in own]
    schedule = schedules.get_schedule_class(name)(stages, 4, loss_fn=mean_square)
    functions = Functions(schedules)
    functions.register(schedule, *kinds)
    kept: list[Any] = []
    for x, y in batches(2):
        losses: list[Tensor] = []
        arguments = {"target": y, "losses": losses} if number - 1 in own else {}
        schedule.step(*([x] if 0 in own else []), **arguments)
        kept += [loss.detach() for loss in losses]
        for s in own:
            kept += [p.grad.clone() for p in modules[s].parameters() if p.grad is not None]
            modules[s].zero_grad()
    return kept, len(functions.calls)
