"""What the single controller costs.

    .venv/bin/python -m bench.controller [--engine local|monarch] [--rounds 30]
    .venv/bin/python -m bench.controller --section step [--engine local|monarch] [--rounds 30]

Per action: stages of one linear layer of width 8, so that nothing else counts, stepped through
action by action and run with a message a rank, one after the other in each round. Monarch's own
helper takes 2.1 to 3.0 ms an action for such stages.

Per step: configuration a of bench.runtime on two ranks. A round is one step that the script asks
for and, in turning order, one that the ranks run by themselves when they are told to: the same
pipeline, the same batch, without a message to or from the script meanwhile. Of the script's step it
is also told how much longer the script saw it than the ranks, which a busy machine hardly blurs. A
round in which other programs used more than a tenth of a CPU is run again.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from bench.common import QUIET, Sample, machine_seconds, provenance, ratios, table, wait_for_quiet
from bench.runtime_sides import CONFIGS, RANKS, Model
from torch import Tensor, nn

from fullbore.controller import HostedStage, PipelineParallelism
from fullbore.controller.host import RankHost, Request
from fullbore.runtime import StepOutput
from fullbore.schedules import FAMILIES

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


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


Span = tuple[float, float]


class TimedHost(RankHost):
    """Remembers when a process's ranks began their last step, and ended it."""

    span: Span

    def train(self, request: Request) -> StepOutput:
        """As ever, but for the clock."""
        start = time.perf_counter()
        found = super().train(request)
        self.span = start, time.perf_counter()
        return found

    def run_alone(self, request: Request) -> Span:
        """A step whose results nobody gets."""
        self.train(request)
        return self.span

    def last_span(self) -> Span:
        """Of the last step."""
        return self.span


def time_hosts(_: HostedStage) -> None:
    """Let the host of this process be one that looks at the clock."""
    for found in gc.get_objects():
        if type(found) is RankHost:
            found.__class__ = TimedHost


def processor_seconds(_: HostedStage) -> tuple[int, float]:
    return os.getpid(), time.process_time()


def length(spans: Sequence[Span]) -> float:
    """From the first rank's start to the last one's end."""
    starts, ends = zip(*spans, strict=True)
    return float(max(ends) - min(starts))


class Driven:
    """A pipeline whose steps the script asks for, or its ranks run by themselves."""

    def __init__(self, engine: str, config: str, family: str) -> None:
        size, num_microbatches = CONFIGS[config], CONFIGS[config].microbatches[0]
        model = Model(size, num_microbatches)
        num_stages = RANKS * FAMILIES[family].default_stages_per_rank
        self._batch = (model.x, model.y)
        self.pp = PipelineParallelism(
            RANKS,
            [model.stage(index, num_stages) for index in range(num_stages)],
            schedule=family,
            batch_size=size.rows * num_microbatches,
            microbatch_size=size.rows,
            loss_fn=loss_of,
            engine=engine,
            names="{}.{}".format,
        )
        self.pp.each_stage(time_hosts)
        self.around = Sample()

    def by_script(self) -> float:
        """Seconds of a step that the script sees."""
        start = time.perf_counter()
        self.pp.run(*self._batch)
        seen = time.perf_counter() - start
        self.around.append(seen - length(self.pp._session.ask("last_span")))
        return seen

    def by_ranks(self) -> float:
        """Seconds of a step that the ranks see."""
        options = {"loss_kwargs": None, "loss_scale": 1.0, "seed": None}
        cut = self.pp._cut(*self._batch, {})
        requests = self.pp._requests(cut, options, return_outputs=False)
        return length(self.pp._session.change_each("run_alone", requests))

    def used(self) -> float:
        """CPU seconds of all processes of the pipeline, and of this one."""
        found = dict(self.pp.each_stage(processor_seconds))
        return sum((found | {os.getpid(): time.process_time()}).values())


def per_step(engine: str, family: str, *, config: str, rounds: int, tries: int) -> list[str]:
    """A row: milliseconds of a step either way, their ratio, and what others used of the CPUs."""
    seen: list[tuple[float, float]] = []
    around = Sample()
    worst = 0.0
    driven = Driven(engine, config, family)
    with driven.pp:
        sides: Sequence[Callable[[], float]] = (driven.by_script, driven.by_ranks)
        for number in range(rounds + 1):
            for _ in range(tries):
                start, machine, used = time.perf_counter(), machine_seconds(), driven.used()
                order = sides if number % 2 else sides[::-1]
                times: dict[Any, float] = {side: side() for side in order}
                used, machine = driven.used() - used, machine_seconds() - machine
                foreign = (machine - used) / (time.perf_counter() - start)
                if foreign <= QUIET or not number:
                    break
            if number:  # the first round warms up
                seen.append((times[sides[0]], times[sides[1]]))
                around.append(1e3 * driven.around[-1])
                worst = max(worst, foreign)
    script, ranks = zip(*seen, strict=True)
    cells = [Sample(1e3 * t for t in side).text(1) for side in (script, ranks)]
    cells += [ratios(script, ranks).text(), around.text(2)]
    return [f"{engine}, {family}", *cells, f"{worst:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--section", choices=["action", "step"], default="action")
    parser.add_argument("--engine", default="local")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--family", default="1f1b")
    parser.add_argument("--config", choices=list(CONFIGS), default="a", help="of the steps")
    parser.add_argument("--tries", type=int, default=20, help="of a round that others disturb")
    parser.add_argument("--patience", type=float, default=0.0, help="seconds to wait for quiet")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for line in provenance():
        print(line)
    wait_for_quiet(options.patience, limit=0.2)
    if options.section == "step":
        numbers = {"config": options.config, "rounds": options.rounds, "tries": options.tries}
        head = [
            "engine, schedule",
            "script sees ms",
            "ranks alone ms",
            "ratio",
            "around it ms",
            "foreign CPU",
        ]
        print(f"\n{table(head, [per_step(options.engine, options.family, **numbers)])}")
        return
    rows = [
        per_action(options.engine, num_ranks, options.family, rounds=options.rounds)
        for num_ranks in (1, 2, 4)
    ]
    head = [f"engine {options.engine}", "actions", "us/action", "more than run()", "of it CPU"]
    print(f"\n{table(head, rows)}")


if __name__ == "__main__":
    main()
