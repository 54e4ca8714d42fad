"""How well measured costs predict the step time of every schedule.

    python -m bench.prediction [--steps 24] [--families zbv_zero_bubble ...]

Trains the demo's model on two processes of one thread each, every family twice. The costs that one
run shows - medians by stage and kind, and the links' latencies; nothing is fitted - predict the
steps of the other run of the same family, and of another family that cuts the model alike. Printed
is the median over the steps of the second run of |predicted - measured| / measured. The first step
of each run is left out, and the optimizer's part of a step.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch
from bench.common import provenance

import fullbore as fb
from fullbore.runtime import Pipeline, Stage, Transport
from fullbore.runtime.launch import launch
from fullbore.sim import Profile, Report, report
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


def train(transport: Transport, rank: int, name: str, steps: int) -> Profile | None:
    """Some steps of the demo's model under a family; their profile, on rank 0."""
    schedule = fb.build(name, num_ranks=RANKS, num_microbatches=MICROBATCHES)
    layers = split_layers(SIZE, schedule.num_stages)
    parts = {
        stage: build_model(SIZE, layers[stage], seed=0, device=torch.device("cpu"))
        for stage in schedule.placement.stages_of(rank)
    }
    stages = [Stage(part, stage, schedule.num_stages) for stage, part in parts.items()]
    pipe = Pipeline(stages, schedule, loss_fn=loss_fn, transport=transport, profile=True)
    optimizer = Optimizer(parts.values(), RECIPE)
    generator = torch.Generator().manual_seed(0)
    shape = (RECIPE.batch_size, SIZE.sequence_length)
    for step in range(steps):
        tokens = torch.randint(VOCABULARY, shape, generator=generator)
        pipe.step(tokens, target=tokens)
        optimizer.step(step)
    profile = pipe.profile()
    return profile if rank == 0 else None


def measure(name: str, steps: int) -> Profile:
    """One run of a family in processes of its own."""
    found: list[Any] = launch(train, RANKS, transport="shm", args=(name, steps))
    assert isinstance(found[0], Profile)
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--families", nargs="+", choices=list(DONORS), default=list(DONORS))
    parser.add_argument("--steps", type=int, default=24)
    options = parser.parse_args()
    for line in provenance():
        print(line)
    wanted = list(dict.fromkeys([*options.families, *map(DONORS.__getitem__, options.families)]))
    first = {name: measure(name, options.steps) for name in wanted}
    second = {name: measure(name, options.steps) for name in options.families}
    print(f"\n{SIZE}, {RECIPE.batch_size} rows, {MICROBATCHES} microbatches, {RANKS} ranks\n")
    print("| schedule | measured ms | predicted ms | error | costs of | predicted ms | error |")
    print("|---|---|---|---|---|---|---|")
    errors = []
    for name, profile in second.items():
        donor = DONORS[name]
        own, other = report(profile, first[name].costs()), report(profile, first[donor].costs())
        errors.append((own.error, other.error))
        print(f"| {name} | {own.measured * 1e3:.1f} | {_cells(own)} | {donor} | {_cells(other)} |")
    for column, whose in enumerate(("its own", "another")):
        found = [pair[column] for pair in errors]
        print(f"\nunder {whose} family's costs: median {statistics.median(found):.1%}", end="")
        print(f", worst {max(found):.1%}")


def _cells(found: Report) -> str:
    return f"{found.predicted * 1e3:.1f} | {found.error:.1%}"


if __name__ == "__main__":
    main()
