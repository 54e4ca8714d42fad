"""What each rank of ``bench.runtime`` does: all measurements, in the order that its seed says."""

from __future__ import annotations

import faulthandler
import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Barrier
from typing import Any

import torch.distributed as dist
from bench.common import QUIET, machine_seconds, wait_for_quiet
from bench.runtime_memory import peak_memory
from bench.runtime_sides import (
    CONFIGS,
    FAMILIES,
    RANKS,
    LocalBound,
    Model,
    Setup,
    Side,
    Sockets,
    compare,
    make_side,
)

from fullbore.runtime.transport import Transport

BOUND = "local bound"

STUCK = 120.0
"""Seconds after which a measurement has hung, and the rank says where and ends."""


@dataclass(frozen=True)
class Job:
    """What to measure.

    Attributes:
        config: the name of the configuration.
        microbatches: how many.
        families: their names.
        transports: of fullbore's side.
        rounds: how often.
        patience: seconds to wait for a quiet moment before each family of a round.
        memory: also count memory.
        rendezvous: a file that does not exist yet.
    """

    config: str
    microbatches: int
    families: tuple[str, ...]
    transports: tuple[str, ...]
    rounds: int
    patience: float
    memory: bool
    rendezvous: str

    @property
    def sides(self) -> tuple[str, ...]:
        """Torch's and ours."""
        return ("torch", *self.transports)


@dataclass(frozen=True)
class Time:
    """One measurement on one rank: clock readings at both ends, CPU seconds used in between by the
    main thread and by the whole process, and by anything on the machine."""

    start: float
    end: float
    main: float
    process: float
    machine: float


def run_rank(
    transport: Transport,
    rank: int,
    report: Callable[[tuple[str, str, Any]], None],
    job: Job,
    barrier: Barrier,
    pairs: Mapping[str, Sequence[Sockets]],
) -> None:
    """Everything that ``job`` says; reports (what, family, value) for each result.

    A pipeline has a transport of its own, so that of the launcher stays idle.
    """
    sockets = {name: ends[rank] for name, ends in pairs.items()}
    dist.init_process_group(
        "gloo", init_method=f"file://{job.rendezvous}", rank=rank, world_size=RANKS
    )
    model = Model(CONFIGS[job.config], job.microbatches)
    setups = {
        name: Setup.make(FAMILIES[name], rank, model, job.microbatches) for name in job.families
    }
    sides = {
        name: {side: make_side(setup, side, sockets[name]) for side in job.sides}
        for name, setup in setups.items()
    }
    for name, setup in setups.items():
        report(("actions", name, len(setup.schedule.programs[rank])))
        report(("difference", name, compare(sides[name], setup)))
    if CONFIGS[job.config].tokens:
        sides[BOUND] = {"torch": LocalBound(model, rank, job.microbatches)}
    for family, times in _rounds(rank, job, sides, partial(_time, model, barrier)):
        report(("times", family, times))
    for made in sides.values():
        for side in made.values():
            side.close()
    if job.memory:
        for name, setup in setups.items():
            report(("memory", name, _memory(job, setup, sockets[f"{name} memory"])))
    dist.destroy_process_group()


def _rounds(
    rank: int, job: Job, sides: Mapping[str, Mapping[str, Side]], timed: Callable[[Side, int], Time]
) -> Iterator[tuple[str, dict[str, Time]]]:
    """One dict of times a round and family. The families of a round come in random order, the same
    on all ranks; of one family the sides run one after the other, in turning order."""
    steps = CONFIGS[job.config].steps
    order, chance = list(sides), random.Random(0)
    for number in range(job.rounds and job.rounds + 1):
        chance.shuffle(order)
        for family in order:
            names = list(sides[family])
            turn = number % len(names)
            if rank == 0:
                wait_for_quiet(job.patience, QUIET)
            times = {
                name: timed(sides[family][name], steps) for name in names[turn:] + names[:turn]
            }
            if number:  # the first round warms up
                yield family, times


def _time(model: Model, barrier: Barrier, side: Side, steps: int) -> Time:
    faulthandler.dump_traceback_later(STUCK, exit=True)
    model.forget_gradients()
    gc.collect()
    barrier.wait()
    machine, process, main = machine_seconds(), time.process_time(), time.thread_time()
    start = time.perf_counter()
    for _ in range(steps):
        side.step()
    end = time.perf_counter()
    main, process = time.thread_time() - main, time.process_time() - process
    barrier.wait()
    return Time(start, end, main, process, machine_seconds() - machine)


def _memory(job: Job, setup: Setup, sockets: Sockets) -> dict[str, int]:
    found = {}
    for name in job.sides:
        faulthandler.dump_traceback_later(STUCK, exit=True)
        setup.model.forget_gradients()
        gc.collect()
        found[name] = peak_memory(partial(make_side, setup, name, sockets))
    return found
