"""Step time, CPU and memory of every schedule, beside torch's own class of the same schedule.

    python -m bench.runtime --config a [--microbatches 8] [--families zbv_zero_bubble ...]

Two processes of one thread each hold both sides - the same stages, allocator and settings - and run
them in turn: in every round the families come in random order, and a family's sides one after the
other, if possible while no other program is busy. Printed are medians over the rounds of the ratio
to torch, with quartiles. Rounds in which other programs kept the machine busy are left out where
enough quiet ones remain.

Configurations: ``a`` and ``b`` are language models (width 256 and 512); ``tiny`` is one linear
layer of width 8 a stage, so that only overhead counts. The local bound is the time of both ranks
computing their halves at once, without a message.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections import deque
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.common import QUIET, Sample, provenance, ratios, table
from bench.runtime_ranks import BOUND, Job, Time, run_rank
from bench.runtime_sides import CONFIGS, FAMILIES, RANKS

from fullbore.runtime.launch import launch
from fullbore.runtime.transport.shm import socket_pairs

ENOUGH = 5
"""Quiet rounds that make the noisy ones dispensable."""

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@dataclass
class Round:
    """One family in one round: the measurements of each side, by rank."""

    times: dict[str, list[Time]]

    @property
    def foreign(self) -> float:
        """CPU seconds a second that other programs used."""
        all_times = list(self.times.values())
        wall = sum(self.wall(name) for name in self.times)
        own = sum(time.process for times in all_times for time in times)
        machine = sum(times[0].machine for times in all_times)
        return max(0.0, (machine - own) / wall)

    def wall(self, side: str) -> float:
        """Seconds from the first rank's start to the last one's end."""
        times = self.times[side]
        return max(time.end for time in times) - min(time.start for time in times)

    def main(self, side: str) -> float:
        """CPU seconds of the main threads."""
        return sum(time.main for time in self.times[side])

    def process(self, side: str) -> float:
        """CPU seconds of the processes."""
        return sum(time.process for time in self.times[side])


@dataclass
class Results:
    """All that a job found, by family."""

    job: Job
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    actions: dict[str, list[int]] = field(default_factory=dict)
    difference: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    memory: dict[str, list[dict[str, int]]] = field(default_factory=dict)

    def quiet(self, *families: str) -> list[tuple[Round, ...]]:
        """The rounds to use, with one entry for each family: those in which all were quiet, or all
        rounds if those are too few."""
        rounds = list(zip(*(self.rounds[family] for family in families), strict=True))
        quiet = [row for row in rounds if all(one.foreign <= QUIET for one in row)]
        return quiet if len(quiet) >= min(ENOUGH, len(rounds)) else rounds

    def ratio(self, family: str, side: str, what: str) -> Sample:
        """Our ``what`` ("wall", "main" or "process") over torch's."""
        rounds = [one for (one,) in self.quiet(family)]
        mine, theirs = ([getattr(one, what)(name) for one in rounds] for name in (side, "torch"))
        return ratios(mine, theirs)

    def of_bound(self, family: str, side: str) -> Sample:
        """The time of the local bound over that of a step."""
        rounds = self.quiet(BOUND, family)
        return ratios(
            (bound.wall("torch") for bound, _ in rounds), (r.wall(side) for _, r in rounds)
        )

    def absolute(self, family: str, side: str, what: str) -> Sample:
        """Seconds a step."""
        steps = CONFIGS[self.job.config].steps
        return Sample(getattr(one, what)(side) / steps for (one,) in self.quiet(family))


def run(job: Job, *, tune_malloc: bool) -> Results:
    """Start the ranks and collect what they find."""
    results, waiting = Results(job), [deque[tuple[str, str, Any]]() for _ in range(RANKS)]
    total = job.rounds * (len(job.families) + bool(CONFIGS[job.config].tokens))

    def take(rank: int, finding: tuple[str, str, Any]) -> None:
        waiting[rank].append(finding)
        if not all(waiting):
            return
        (what, family, mine), *others = [found.popleft() for found in waiting]
        values = [mine, *(value for _, _, value in others)]
        if what == "times":
            results.rounds.setdefault(family, []).append(
                Round({side: [value[side] for value in values] for side in mine})
            )
            done = sum(map(len, results.rounds.values()))
            print(f"{job.config}: {done}/{total}", end="\r", file=sys.stderr, flush=True)
        else:
            getattr(results, what)[family] = values

    names = [*job.families, *(f"{name} memory" for name in job.families)]
    barrier = multiprocessing.get_context("spawn").Barrier(RANKS)
    with ExitStack() as stack:
        sockets = {name: socket_pairs(RANKS) for name in names}
        for ends in (end for pair in sockets.values() for end in pair):
            for end in ends.values():
                stack.enter_context(end)
        args = (job, barrier, sockets)
        launch(run_rank, RANKS, args=args, on_report=take, tune_malloc=tune_malloc)
    return results


def print_steps(results: Results) -> None:
    """Step times of the language models."""
    job, bound = results.job, results.absolute(BOUND, "torch", "wall")
    print(f"local bound {bound.text()} s\n")
    head = ["schedule", "torch s"]
    for transport in job.transports:
        head += [f"{transport} / torch", f"{transport}: bound / step", f"{transport} gradients"]
    head += ["torch: bound / step", "rounds", "foreign CPU"]
    rows = []
    for family in job.families:
        row = [family, results.absolute(family, "torch", "wall").text()]
        for transport in job.transports:
            row.append(results.ratio(family, transport, "wall").text())
            row.append(results.of_bound(family, transport).text())
            row.append(agreement(results, family, transport))
        row.append(results.of_bound(family, "torch").text())
        rows.append([*row, *noise(results, family)])
    print(table(head, rows))


def print_overhead(results: Results) -> None:
    """CPU and wall time where only overhead counts."""
    job = results.job
    head = ["schedule", "actions", "torch CPU/action us", "torch wall ms"]
    for side in job.transports:
        head += [f"{side} {what} / torch" for what in ("CPU/action", "process CPU", "wall")]
        head += [f"{side} gradients"]
    rows = []
    for family in job.families:
        actions = sum(results.actions[family])
        main = results.absolute(family, "torch", "main").median / actions * 1e6
        wall = results.absolute(family, "torch", "wall").median * 1e3
        row = [family, str(actions), f"{main:.1f}", f"{wall:.1f}"]
        for side in job.transports:
            row += [
                results.ratio(family, side, what).text() for what in ("main", "process", "wall")
            ]
            row.append(agreement(results, family, side))
        rows.append([*row, *noise(results, family)])
    print(table([*head, "rounds", "foreign CPU"], rows))


def print_memory(results: Results) -> None:
    """Peak memory of each rank."""
    job = results.job
    head = ["schedule"]
    for rank in range(RANKS):
        head += [f"rank {rank} torch MB", *(f"{side} / torch" for side in job.transports)]
    rows = []
    for family, by_rank in results.memory.items():
        row = [family]
        for held in by_rank:
            row.append(f"{held['torch'] / 1e6:.2f}")
            row += [f"{held[side] / held['torch']:.3f}" for side in job.transports]
        rows.append(row)
    print(f"\nPeak memory\n\n{table(head, rows)}")


def agreement(results: Results, family: str, side: str) -> str:
    """How far gradients and losses are from torch's."""
    worst = max(by_side[side] for by_side in results.difference[family])
    return "equal" if worst == 0 else f"{worst:.0e}"


def noise(results: Results, family: str) -> list[str]:
    """Rounds used, and how busy other programs kept the machine in them."""
    foreign = Sample(one.foreign for (one,) in results.quiet(family))
    return [f"{len(foreign)}/{len(results.rounds[family])}", f"{foreign.median:.2f}"]


def report(results: Results) -> None:
    """Print the tables of one job."""
    config = CONFIGS[results.job.config]
    print(
        f"\nConfiguration {results.job.config}: width {config.width}, {config.layers} layers, ",
        end="",
    )
    print(f"{config.tokens} tokens, {config.rows} rows, {results.job.microbatches} microbatches\n")
    if results.rounds:
        (print_steps if config.tokens else print_overhead)(results)
    if results.memory:
        print_memory(results)


def parse() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", choices=CONFIGS, default="a")
    parser.add_argument("--microbatches", type=int, nargs="+", help="instead of the config's")
    parser.add_argument("--families", choices=FAMILIES, nargs="+", default=list(FAMILIES))
    parser.add_argument("--transport", choices=("shm", "p2p"), nargs="+", default=["shm", "p2p"])
    parser.add_argument("--rounds", type=int, default=12, help="0: count memory only")
    parser.add_argument("--patience", type=float, default=5.0, help="s to wait for a quiet moment")
    parser.add_argument("--malloc", choices=("tuned", "default"), default="tuned")
    parser.add_argument("--no-memory", action="store_true", help="do not count memory")
    parser.add_argument("--json", type=Path, help="also write all measurements here")
    return parser.parse_args()


def main() -> None:
    options = parse()
    os.environ.update(ENVIRONMENT)
    print("\n".join(provenance()), flush=True)
    found = []
    for count in options.microbatches or CONFIGS[options.config].microbatches:
        with tempfile.TemporaryDirectory() as folder:
            job = Job(
                config=options.config,
                microbatches=count,
                families=tuple(options.families),
                transports=tuple(options.transport),
                rounds=options.rounds,
                patience=options.patience,
                memory=not options.no_memory,
                rendezvous=str(Path(folder) / "rendezvous"),
            )
            found.append(run(job, tune_malloc=options.malloc == "tuned"))
        report(found[-1])
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(one) for one in found]), "utf-8")


if __name__ == "__main__":
    main()
