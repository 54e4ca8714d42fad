"""What the single controller costs.

    .venv/bin/python -m bench.controller [--engine local|monarch] [--rounds 30]

Per action: stages of one linear layer of width 8, so that nothing else counts, stepped through
action by action and run with a message a rank, one after the other in each round. Monarch's own
helper takes 2.1 to 3.0 ms an action for such stages.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from bench.common import Sample, provenance, table, wait_for_quiet
from torch import nn

from fullbore.controller import PipelineParallelism

WIDTH, MICROBATCHES = 8, 4


def micros(function: Callable[[], object], actions: int) -> tuple[float, float]:
    """Microseconds an action that one call takes: by the clock, and of this process's CPU time."""
    start, used = time.perf_counter(), time.process_time()
    function()
    return (
        (time.perf_counter() - start) * 1e6 / actions,
        (time.process_time() - used) * 1e6 / actions,
    )


def per_action(engine: str, num_ranks: int, family: str, *, rounds: int) -> list[str]:
    """A row: the schedule, its actions, and microseconds an action either way."""
    stages = [nn.Linear(WIDTH, WIDTH) for _ in range(num_ranks)]
    x = torch.randn(MICROBATCHES, WIDTH)
    wall, extra_wall, extra_cpu = Sample(), Sample(), Sample()
    with PipelineParallelism(
        num_ranks,
        stages,
        schedule=family,
        batch_size=MICROBATCHES,
        loss_fn=nn.MSELoss(),
        engine=engine,
    ) as pp:
        actions = sum(map(len, pp.schedule.programs))
        pp.run(x, x)  # the first one makes the programs
        for _ in range(rounds):
            stepped = micros(lambda: pp.start(x, x).finish(), actions)
            whole = micros(lambda: pp.run(x, x), actions)
            wall.append(stepped[0])
            extra_wall.append(stepped[0] - whole[0])
            extra_cpu.append(stepped[1] - whole[1])
    name = f"{family}, {num_ranks} ranks"
    return [name, str(actions), wall.text(0), extra_wall.text(0), extra_cpu.text(0)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--family", default="1f1b")
    parser.add_argument("--patience", type=float, default=0.0, help="seconds to wait for quiet")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for line in provenance():
        print(line)
    wait_for_quiet(options.patience, limit=0.2)
    rows = [
        per_action(options.engine, num_ranks, options.family, rounds=options.rounds)
        for num_ranks in (1, 2, 4)
    ]
    head = [f"engine {options.engine}", "actions", "us/action", "more than run()", "of it CPU"]
    print(f"\n{table(head, rows)}")


if __name__ == "__main__":
    main()
