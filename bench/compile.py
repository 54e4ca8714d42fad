"""Build, lower and verify a large schedule, against torch's schedule class doing the first two.

    .venv/bin/python bench/compile.py [--ranks 32 --stages-per-rank 4 --microbatches 128]

Each repetition times both, one after the other, in this process; torch builds and lowers in its
constructor and verifies nothing across ranks.
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
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

import fullbore as fb


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--stages-per-rank", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=9)
    options = parser.parse_args()
    ranks, per_rank, microbatches = (
        options.ranks,
        options.stages_per_rank,
        options.microbatches,
    )

    parts: dict[str, list[float]] = {"build": [], "lower + verify": [], "torch": [], "ratio": []}
    for _ in range(options.repetitions):
        build, schedule = timed(
            lambda: fb.build(
                "interleaved_1f1b",
                num_ranks=ranks,
                num_microbatches=microbatches,
                stages_per_rank=per_rank,
            )
        )
        lower, lowered = timed(partial(fb.lower, schedule))
        theirs, reference = timed(lambda: torch_schedule(ranks, per_rank, microbatches))
        for name, value in (("build", build), ("lower + verify", lower), ("torch", theirs)):
            parts[name].append(value)
        parts["ratio"].append((build + lower) / theirs)
    actions = sum(map(len, reference.pipeline_order_with_comms.values()))
    print(f"interleaved_1f1b P={ranks} V={per_rank} M={microbatches}")
    print(f"lowered actions: {lowered.num_actions} (torch: {actions}, with UNSHARD and RESHARD)")
    for name, values in parts.items():
        unit = "" if name == "ratio" else " s"
        low, high = min(values), max(values)
        print(f"{name:15s} {statistics.median(values):.3f}{unit}  [{low:.3f}-{high:.3f}]")


if __name__ == "__main__":
    main()
