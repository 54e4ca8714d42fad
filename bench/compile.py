"""Build, lower, verify and simulate a large schedule, against torch doing all but the third.

    .venv/bin/python bench/compile.py [--ranks 32 --stages-per-rank 4 --microbatches 128] [--curve]

Each repetition times both, one after the other, in this process. torch builds and lowers in its
constructor and verifies nothing across ranks; its simulator, at one step an action, gets the
schedule without the sharding actions that it refuses. --curve times simulate alone, up to a million
actions.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.pipelining.schedules import (
    ScheduleInterleaved1F1B,
    _simulate_comms_compute,
)

import fullbore as fb
from fullbore.sim import UniformCosts, simulate

COSTS = UniformCosts(F=1, I=1, W=1, latency=0.1)
SHARDING = ("UNSHARD", "RESHARD", "REDUCE_GRAD")  # which torch's simulator refuses


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    gc.collect()
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def torch_schedule(num_ranks: int, stages_per_rank: int, num_microbatches: int) -> Any:
    """Torch's class on rank 0, with stages that only say where they are."""
    num_stages = num_ranks * stages_per_rank
    stages = [
        SimpleNamespace(
            stage_index=v * num_ranks,
            num_stages=num_stages,
            group_size=num_ranks,
            group_rank=0,
            is_first=v == 0,
            is_last=False,
            has_backward=True,
            submod=torch.nn.Identity(),
            stage_index_to_group_rank={s: s % num_ranks for s in range(num_stages)},
            device=torch.device("cpu"),
            group=None,
        )
        for v in range(stages_per_rank)
    ]
    return ScheduleInterleaved1F1B(stages, num_microbatches, loss_fn=torch.nn.MSELoss())  # type: ignore[arg-type]


def build(ranks: int, per_rank: int, microbatches: int) -> fb.Schedule:
    return fb.build(
        "interleaved_1f1b",
        num_ranks=ranks,
        num_microbatches=microbatches,
        stages_per_rank=per_rank,
    )


def torch_simulation(schedule: Any) -> Any:
    """Torch's simulator, ready to run on a copy of what torch lowered."""
    order = {
        rank: [a for a in actions if a.computation_type.name not in SHARDING]
        for rank, actions in schedule.pipeline_order_with_comms.items()
    }
    ranks, stages = len(order), schedule._num_stages
    return lambda: _simulate_comms_compute(order, lambda stage: stage % ranks, stages)


def curve(repetitions: int) -> None:
    """How long simulate takes by size."""
    print("actions   simulate        us/action")
    for microbatches in (13, 128, 1310):
        lowered = fb.lower(build(32, 4, microbatches))
        times = [timed(partial(simulate, lowered, COSTS))[0] for _ in range(repetitions)]
        middle = statistics.median(times)
        each = middle / lowered.num_actions * 1e6
        spread = f"[{min(times):.3f}-{max(times):.3f}]"
        print(f"{lowered.num_actions:8d}  {middle:.3f} {spread}  {each:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--stages-per-rank", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--curve", action="store_true")
    options = parser.parse_args()
    if options.curve:
        curve(min(3, options.repetitions))
        return
    size = options.ranks, options.stages_per_rank, options.microbatches
    names = ("build", "lower + verify", "simulate", "torch", "torch simulates")
    parts: dict[str, list[float]] = {name: [] for name in names}
    ratios: dict[str, list[float]] = {"ratio": [], "ratio with simulation": []}
    for _ in range(options.repetitions):
        first, schedule = timed(partial(build, *size))
        second, lowered = timed(partial(fb.lower, schedule))
        third, _ = timed(partial(simulate, lowered, COSTS))
        fourth, reference = timed(partial(torch_schedule, *size))
        fifth, _ = timed(torch_simulation(reference))
        for name, value in zip(names, (first, second, third, fourth, fifth), strict=True):
            parts[name].append(value)
        ratios["ratio"].append((first + second) / fourth)
        ratios["ratio with simulation"].append((first + second + third) / (fourth + fifth))
    actions = sum(map(len, reference.pipeline_order_with_comms.values()))
    print("interleaved_1f1b P={} V={} M={}".format(*size))
    print(f"lowered actions: {lowered.num_actions} (torch: {actions}, with UNSHARD and RESHARD)")
    for name, values in (parts | ratios).items():
        unit = "" if name in ratios else " s"
        low, high = min(values), max(values)
        print(f"{name:21s} {statistics.median(values):.3f}{unit}  [{low:.3f}-{high:.3f}]")


if __name__ == "__main__":
    main()
