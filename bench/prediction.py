"""How well measured costs predict the step time of every schedule.

    python -m bench.prediction [--runs 9] [--steps 5] [--families zbv_zero_bubble ...]

Trains the demo's model on two processes of one thread each, all families by turns: one run is some
steps of one family, and the first of them, which finds cold caches, is left out. The costs that a
run shows - medians by stage and kind, and the links' latencies; nothing is fitted - predict the
steps of the same family's next run. The costs of another family, which cuts the model alike,
predict its run that comes next. Printed is the median over these steps of |predicted - measured| /
measured. A step's time is from the first work on any rank to the last; the optimizer is no part.
A run is repeated when other programs used more than a tenth of a CPU meanwhile.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch
from bench.common import QUIET, machine_seconds, provenance, table

import fullbore as fb
from fullbore.runtime import Pipeline, Stage, Transport
from fullbore.runtime.launch import launch
from fullbore.runtime.transport import SharedMemoryTransport
from fullbore.runtime.transport.shm import socket_pairs
from fullbore.sim import Profile, simulate
from fullbore.train.model import build_model, loss_fn, split_layers
from fullbore.train.optimizer import Optimizer
from fullbore.train.settings import VOCABULARY, ModelSize, Recipe

SIZE = ModelSize(layers=4)
RECIPE = Recipe(SIZE)
RANKS, MICROBATCHES = 2, 8

# Whose costs predict whom: a family with the same stages and, where it can be, the same kinds.
DONORS = {
    "gpipe": "1f1b",
    "1f1b": "gpipe",
    "looped_bfs": "interleaved_1f1b",
    "interleaved_1f1b": "looped_bfs",
    "interleaved_zero_bubble": "zbv_zero_bubble",
    "zbv_zero_bubble": "interleaved_zero_bubble",
    "dualpipev": "interleaved_1f1b",
}


class Trained:
    """The demo's model under one family: this rank's part."""

    def __init__(self, name: str, rank: int, transport: Transport) -> None:
        schedule = fb.build(name, num_ranks=RANKS, num_microbatches=MICROBATCHES)
        layers = split_layers(SIZE, schedule.num_stages)
        parts = {
            stage: build_model(SIZE, layers[stage], seed=0, device=torch.device("cpu"))
            for stage in schedule.placement.stages_of(rank)
        }
        stages = [Stage(part, stage, schedule.num_stages) for stage, part in parts.items()]
        self._pipe = Pipeline(stages, schedule, loss_fn=loss_fn, transport=transport, profile=True)
        self._optimizer, self._done = Optimizer(parts.values(), RECIPE), 0
        self._generator = torch.Generator().manual_seed(0)

    def run(self, steps: int, tries: int) -> tuple[Profile, float]:
        """A run that other programs leave alone, or the last of ``tries``; and the CPU seconds a
        second that they used."""
        for _ in range(tries):
            start, machine, own = time.perf_counter(), machine_seconds(), time.process_time()
            found = self._run(steps)
            used = sum(self._pipe.all_gather(time.process_time() - own))
            foreign = (machine_seconds() - machine - used) / (time.perf_counter() - start)
            foreign = self._pipe.all_gather(max(0.0, foreign))[0]
            if foreign <= QUIET:
                break
        return found, foreign

    def _run(self, steps: int) -> Profile:
        """Some steps; all but the first, measured."""
        shape = (RECIPE.batch_size, SIZE.sequence_length)
        for _ in range(steps):
            tokens = torch.randint(VOCABULARY, shape, generator=self._generator)
            self._pipe.step(tokens, target=tokens)
            self._optimizer.step(self._done)
            self._done += 1
        found = self._pipe.profile()
        return Profile(found.schedule, found.steps[1 - steps :])


def train(
    _transport: Transport,
    rank: int,
    sockets: Mapping[str, Sequence[Any]],
    runs: int,
    steps: int,
    tries: int,
) -> list[dict[str, tuple[Profile, float]]]:
    """All runs, by family, on rank 0; a first run of each warms up."""
    transports = {name: SharedMemoryTransport(rank, ends[rank]) for name, ends in sockets.items()}
    trained = {name: Trained(name, rank, each) for name, each in transports.items()}
    found = []
    for _ in range(runs + 1):
        found.append({name: each.run(steps, tries) for name, each in trained.items()})
    return found[1:] if rank == 0 else []


def predict(runs: Sequence[Mapping[str, Profile]], name: str, donor: str) -> tuple[float, float]:
    """What the costs of the donor's latest run before each run predict: the median in seconds, and
    the median error."""
    order = list(runs[0])
    same_round = order.index(donor) < order.index(name)
    predicted, errors = [], []
    for number, run in enumerate(runs[1:], 1):
        costs = runs[number if same_round else number - 1][donor].costs(skip=0)
        makespan = simulate(run[name].schedule, costs).makespan
        predicted.append(makespan)
        errors += [abs(makespan - real) / real for real in run[name].step_times()]
    return median(predicted), median(errors)


def measure(names: Sequence[str], *args: int) -> list[dict[str, tuple[Profile, float]]]:
    """All runs, in two processes."""
    with ExitStack() as stack:
        sockets = {name: socket_pairs(RANKS) for name in names}
        for end in (end for pair in sockets.values() for ends in pair for end in ends.values()):
            stack.enter_context(end)
        found: list[Any] = launch(train, RANKS, transport="shm", args=(sockets, *args))
    return found[0]  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--families", nargs="+", choices=list(DONORS), default=list(DONORS))
    parser.add_argument("--runs", type=int, default=9, help="of each family, and one to warm up")
    parser.add_argument("--steps", type=int, default=5, help="of a run; the first is left out")
    parser.add_argument("--tries", type=int, default=20, help="of a run that others disturb")
    given = parser.parse_args()
    if given.runs < 2 or given.steps < 2:
        parser.error("one run predicts the next, and the first step of each is left out: give 2")
    print(*provenance(), sep="\n", end="\n\n")
    names = list(dict.fromkeys([*given.families, *map(DONORS.__getitem__, given.families)]))
    found = measure(names, given.runs, given.steps, given.tries)
    runs = [{name: profile for name, (profile, _) in run.items()} for run in found]
    foreign = {name: max(run[name][1] for run in found) for name in names}
    count = (given.runs - 1) * (given.steps - 1)
    print(f"{SIZE}, {RECIPE.batch_size} rows, {MICROBATCHES} microbatches, {RANKS} ranks; ", end="")
    print(f"{count} steps of each family\n")
    rows, errors = [], []
    for name in given.families:
        times = [step for run in runs[1:] for step in run[name].step_times()]
        own, other = predict(runs, name, name), predict(runs, name, DONORS[name])
        errors.append((own[1], other[1]))
        cells = [f"{own[0] * 1e3:.1f}", f"{own[1]:.1%}", DONORS[name]]
        cells += [f"{other[0] * 1e3:.1f}", f"{other[1]:.1%}", f"{foreign[name]:.2f}"]
        rows.append([name, f"{median(times) * 1e3:.1f}", *cells])
    head = ["schedule", "measured ms", "predicted ms", "error"]
    print(table([*head, "costs of", *head[2:], "foreign CPU"], rows), end="\n\n")
    for column, whose in enumerate(("its own", "another")):
        all_errors = [pair[column] for pair in errors]
        print(f"under {whose} family's costs: median {median(all_errors):.1%}", end=", ")
        print(f"worst {max(all_errors):.1%}")


if __name__ == "__main__":
    main()
