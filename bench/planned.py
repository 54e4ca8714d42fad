"""A planned order beside every named family that fits the same memory, measured in turn.

    python -m bench.planned [--split 1,4,1,4] [--memory 1.3x] [--rounds 40]

Two processes of one thread each hold the demo's model, cut into uneven stages that nobody may cut
anew. Some steps are measured; their costs predict every family that keeps within the memory, and
the planner looks for something better on the same placement. Families that take costs and memory
into account also race as the planner makes them. Then a pipeline for each schedule is made in one
more pair of processes, on one set of parameters for each placement, and they take steps
in turn: every round has one step of each, in random order. Printed are medians over the rounds,
with quartiles, and of the ratio to the plan within a round. The optimizer is not included.

Which rank holds how much is the same for all: what differs is order, and for families with the
other placement who holds what.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from threading import Barrier
from typing import Any

import torch
from bench.common import QUIET, Sample, provenance, ratios, table, wait_for_quiet

from fullbore.errors import ParameterError
from fullbore.ir import Placement, Schedule
from fullbore.plan import Memory, Plan, parse_memory
from fullbore.runtime import Pipeline, SharedMemoryTransport, Stage, Transport
from fullbore.runtime.launch import launch
from fullbore.runtime.transport.shm import socket_pairs
from fullbore.schedules import FAMILIES
from fullbore.sim import Profile, TableCosts, measure, simulate
from fullbore.train.footprint import Footprint, footprint
from fullbore.train.model import GPT, build_model, loss_fn, split_layers
from fullbore.train.order import best_order, with_sends
from fullbore.train.planner import costs_of, counterpart
from fullbore.train.settings import VOCABULARY, ModelSize

RANKS = 2
PLACEMENTS = {"vee": Placement.vee(RANKS), "loop": Placement.loop(RANKS, 2)}
MADE = " for these costs"


@dataclass(frozen=True)
class Job:
    """What is trained: sizes, layers by stage, microbatches of how many rows."""

    size: ModelSize
    split: tuple[int, ...]
    microbatches: int
    rows: int

    def parts(self, placement: Placement, rank: int) -> dict[int, GPT]:
        """The stages of a rank."""
        layers = split_layers(self.size, len(self.split), self.split)
        return {s: build_model(self.size, layers[s], seed=0) for s in placement.stages_of(rank)}

    def batch(self) -> torch.Tensor:
        """One batch; what is in it makes no difference to the time."""
        generator = torch.Generator().manual_seed(0)
        shape = (self.rows * self.microbatches, self.size.sequence_length)
        return torch.randint(VOCABULARY, shape, generator=generator)


@dataclass(frozen=True)
class Entry:
    """A schedule in the race, with what is predicted of it: seconds, bytes of the fullest rank."""

    name: str
    schedule: Schedule
    predicted: float
    peak: float


def sound(
    transport: Transport, rank: int, job: Job, schedule: Schedule, steps: int
) -> tuple[list[Profile], dict[int, Footprint]]:
    """Profiles of a schedule and of its counterpart, and what the stages of this rank hold."""
    parts, tokens, profiles = job.parts(schedule.placement, rank), job.batch(), []
    for chosen in filter(None, (schedule, counterpart(schedule))):
        pipe = make_pipeline(parts, chosen, transport, profile=True)
        for _ in range(steps):
            pipe.step(tokens, target=tokens)
        profiles.append(pipe.profile())
    held = {stage: footprint(part, job.size, rows=job.rows) for stage, part in parts.items()}
    return profiles, held


def make_pipeline(
    parts: dict[int, GPT], schedule: Schedule, transport: Transport, **options: Any
) -> Pipeline:
    """The stages of a rank, in the order of a schedule."""
    stages = [Stage(part, stage, schedule.num_stages) for stage, part in parts.items()]
    return Pipeline(stages, schedule, loss_fn=loss_fn, transport=transport, **options)


def measured_costs(job: Job, schedule: Schedule, steps: int) -> TableCosts:
    """What some steps of a schedule show."""
    found: list[Any] = launch(sound, RANKS, transport="shm", args=(job, schedule, steps))
    held = {stage: one for _, own in found for stage, one in own.items()}
    return costs_of(found[0][0], held)


def families(job: Job, costs: TableCosts, limit: float) -> tuple[list[Entry], list[str]]:
    """Every family with these stages that fits, the best first, and what does not."""
    fitting, others = [], []
    for family in FAMILIES.values():
        for placement in PLACEMENTS.values():
            try:
                place = family.place(RANKS, 2, placement)
                schedule = replace(family.build(place, job.microbatches), name=family.name)
            except ParameterError:
                continue
            if schedule.forward_only:
                continue
            entry = predicted(family.name, schedule, costs)
            if entry.peak <= limit * (1 + 1e-9):
                fitting.append(entry)
            else:
                others.append(f"{entry.name} ({entry.peak / 1e6:.1f} MB)")
    return sorted(fitting, key=lambda entry: entry.predicted), others


def made_for(costs: TableCosts, found: Plan, known: Sequence[Schedule]) -> list[Entry]:
    """What the planner made of families that take costs and memory into account."""
    programs = [schedule.programs for schedule in known]
    return [
        predicted(f"{own.schedule.name}{MADE}", own.schedule, costs)
        for own in found.candidates
        if own.schedule.name != "plan" and own.schedule.programs not in programs
    ]


def predicted(name: str, schedule: Schedule, costs: TableCosts) -> Entry:
    """A schedule and what the costs say of it."""
    timeline = simulate(schedule, costs)
    peak = max(peak.bytes for peak in measure(schedule, timeline, costs).peak)
    return Entry(name, schedule, timeline.makespan, peak)


def race(
    _: Transport,
    rank: int,
    job: Job,
    schedules: Sequence[Schedule],
    rounds: int,
    barrier: Barrier,
    pairs: Sequence[Any],
) -> tuple[list[list[tuple[float, float]]], list[float]]:
    """Steps in turn: when each began and ended, by round; and how far the gradients of each
    schedule's first step are from the first schedule's, as a part of the largest."""
    parts = {p: job.parts(p, rank) for p in {s.placement for s in schedules}}
    pipes = [
        make_pipeline(parts[s.placement], s, SharedMemoryTransport(rank, ends[rank]))
        for s, ends in zip(schedules, pairs, strict=True)
    ]
    tokens, chance = job.batch(), random.Random(0)
    apart, known = [], dict[str, torch.Tensor]()
    times: list[list[tuple[float, float]]] = []
    for number in range(rounds + 1):
        order = [*range(len(pipes))]
        if number:
            chance.shuffle(order)
        row = [(0.0, 0.0)] * len(pipes)
        for n in order:
            if rank == 0:
                wait_for_quiet(1.0, QUIET)
            barrier.wait()
            began = time.perf_counter()
            pipes[n].step(tokens, target=tokens)
            row[n] = began, time.perf_counter()
            own = parts[schedules[n].placement]
            if not number:
                apart.append(compare(own, known))
            for part in own.values():
                part.zero_grad(set_to_none=False)
        if number:  # the first round warms up
            times.append(row)
    return times, apart


def compare(parts: dict[int, GPT], known: dict[str, torch.Tensor]) -> float:
    """How far gradients are from those that are known; those that are not become so."""
    worst = 0.0
    for part in parts.values():
        for name, parameter in part.named_parameters():
            assert parameter.grad is not None
            wanted = known.setdefault(name, parameter.grad.clone())
            off = (parameter.grad - wanted).abs().max() / wanted.abs().max()
            worst = max(worst, off.item())
    return worst


def run_race(job: Job, entries: Sequence[Entry], rounds: int) -> tuple[list[Sample], float]:
    """The step times of each entry, in seconds, and how far any gradients are apart."""
    schedules = [entry.schedule for entry in entries]
    pairs = [socket_pairs(RANKS) for _ in entries]
    barrier = get_context("spawn").Barrier(RANKS)
    found: list[Any] = launch(
        race, RANKS, transport="shm", args=(job, schedules, rounds, barrier, pairs)
    )
    by_rank = [times for times, _ in found]
    samples = [Sample() for _ in entries]
    for rows in zip(*by_rank, strict=True):
        for n, sample in enumerate(samples):
            began, ended = zip(*(row[n] for row in rows), strict=True)
            sample.append(max(ended) - min(began))
    return samples, max(off for _, apart in found for off in apart)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--split", default="1,4,1,4", help="layers of the four stages")
    parser.add_argument("--placement", choices=[*PLACEMENTS], default="vee", help="the plan's")
    parser.add_argument("--memory", default="1.3x")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--rows", type=int, default=2, help="of a microbatch")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--steps", type=int, default=16, help="to measure before planning")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--deadline", type=float, default=10.0)
    options = parser.parse_args()
    for line in provenance():
        print(line)
    split = tuple(map(int, options.split.split(",")))
    size = ModelSize(layers=sum(split), width=options.width)
    job, placement = Job(size, split, options.microbatches, options.rows), options.placement
    print(f"\n{size}, {split} layers, {job.microbatches} microbatches of {job.rows} rows\n")
    named = FAMILIES["zbv_zero_bubble" if placement == "vee" else "interleaved_zero_bubble"]
    schedule = named.build(PLACEMENTS[placement], job.microbatches)
    costs = measured_costs(job, schedule, options.steps)
    limit = parse_memory(options.memory).bytes(costs, [schedule.placement])
    fitting, others = families(job, costs, limit)
    found = best_order(
        schedule,
        with_sends(costs, schedule.placement),
        memory=limit,
        deadline=options.deadline,
    )
    planned = predicted("plan", found.schedule, costs)
    fitting += made_for(costs, found, [entry.schedule for entry in fitting])
    announce(planned, fitting, others, found=found, memory=parse_memory(options.memory))
    samples, apart = run_race(job, [planned, *fitting], options.rounds)
    report([planned, *fitting], samples)
    print(f"\ngradients of all of them agree to {apart:.1e}")


def announce(
    planned: Entry, fitting: Sequence[Entry], others: Sequence[str], *, found: Plan, memory: Memory
) -> None:
    """What is expected, before anything is run."""
    times = f"{memory.amount:g}{'x' if memory.relative else ' bytes'}"
    print(f"memory {times}: {found.memory or 0:,.0f} bytes. Does not fit: {', '.join(others)}")
    print(f"plan: {planned.predicted * 1e3:.1f} ms predicted, {found.best.gap:.1%} above the bound")
    for kind, group in groups(fitting):
        best = min(group, key=lambda entry: entry.predicted)
        gain = best.predicted / planned.predicted - 1
        print(f"predicted: the best {kind}, {best.name}, takes {gain:.1%} longer than the plan")
    print()


def groups(entries: Sequence[Entry]) -> list[tuple[str, list[Entry]]]:
    """Families as their names give them, and as the planner makes them; those that there are."""
    named = [entry for entry in entries if not entry.name.endswith(MADE)]
    made = [entry for entry in entries if entry.name.endswith(MADE)]
    both = [("family", named), ("family made for these costs", made)]
    return [(kind, group) for kind, group in both if group]


def report(entries: Sequence[Entry], samples: Sequence[Sample]) -> None:
    """A table, and the gain."""
    rows = []
    for entry, sample in zip(entries, samples, strict=True):
        longer = ratios(sample, samples[0])
        rows.append(
            (
                entry.name,
                entry.schedule.placement.shape,
                f"{entry.peak / 1e6:.1f}",
                f"{entry.predicted * 1e3:.1f}",
                Sample(1e3 * seconds for seconds in sample).text(1),
                f"{entry.predicted / entries[0].predicted:.3f}",
                longer.text(),
            )
        )
    heads = ("schedule", "placement", "peak MB", "predicted ms", "measured ms")
    print(table([*heads, "predicted / plan", "measured / plan"], rows))
    print()
    for kind, group in groups(entries[1:]):
        best = min((entries.index(entry) for entry in group), key=lambda n: samples[n].median)
        longer = ratios(samples[best], samples[0])
        print(
            f"measured: the best {kind}, {entries[best].name}, takes {longer.median - 1:.1%} "
            f"longer (quartiles {', '.join(f'{q - 1:.1%}' for q in longer.spread)})"
        )


if __name__ == "__main__":
    main()
