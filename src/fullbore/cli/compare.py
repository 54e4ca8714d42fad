"""``fullbore compare``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from fullbore.cli.costs import costs_option
from fullbore.cli.help import examples
from fullbore.cli.limits import counts, memory_limit
from fullbore.cli.output import echo_json, echo_table, json_option
from fullbore.errors import ParameterError
from fullbore.plan import Memory
from fullbore.schedules import build, families, parse
from fullbore.sim import Costs, Metrics, UniformCosts, measure, simulate


@dataclass(frozen=True)
class _Entry:
    """One family, and its options, with one number of stages a rank."""

    family: str
    stages_per_rank: int
    metrics: Metrics
    fits: bool

    @property
    def peak(self) -> float:
        return max(peak.bytes for peak in self.metrics.peak)


@click.command(
    epilog=examples(
        "fullbore compare --ranks 4 --microbatches 8",
        "fullbore compare --ranks 8 --microbatches 24 --costs 18.5,18.1,9.3,0.6 --memory 1x",
        "fullbore compare --ranks 4 --microbatches 16 --stages-per-rank 1,2 --json",
        "fullbore compare 1f1b zb zb:limit=8 --ranks 4 --microbatches 16 --costs 18.5,18.1,9.3,0.6",
    )
)
@click.argument("schedules", nargs=-1, metavar="[FAMILY]...")
@click.option("--ranks", "-p", type=click.IntRange(min=1), required=True, help="Ranks, P.")
@click.option(
    "--microbatches", "-m", type=click.IntRange(min=1), required=True, help="Microbatches, M."
)
@click.option(
    "--stages-per-rank", "-v", default="1,2,4", show_default=True, help="Which numbers to try."
)
@costs_option("1,1,1")
@click.option(
    "--memory",
    callback=memory_limit,
    metavar="BYTES|0.75x",
    help="What a rank may hold: bytes, or a multiple of P microbatches' activations.",
)
@json_option
def compare(
    schedules: tuple[str, ...],
    *,
    ranks: int,
    microbatches: int,
    stages_per_rank: str,
    costs: Costs | None,
    memory: Memory | None,
    as_json: bool,
) -> None:
    """Compare families, all unless some are named: time, bubble, memory and messages, the fastest
    first. Those that arrange their order by costs do so for these, within the memory.

    Costs given as numbers are of all that a rank holds, whatever number of stages it is cut into.
    Memory is in bytes if the costs say any, else in microbatches' activations of one rank.
    """
    model = UniformCosts(F=1, I=1, W=1) if costs is None else costs
    tried = counts(stages_per_rank)
    if isinstance(model, UniformCosts):
        model = replace(model, activation_bytes=1.0)
    entries, left_out = [], []
    for text in schedules or [name for name in families() if name != "forward_only"]:
        found = []
        for count in tried:
            try:
                found.append(_entry(text, (ranks, microbatches, count), model, memory))
            except ParameterError as error:
                left_out.append(f"{text}, {count} a rank: {error}")
        if schedules and not found:
            raise click.UsageError(left_out[-1])
        entries += found
    if not entries:
        raise click.UsageError("nothing can be compared: " + "; ".join(left_out))
    entries.sort(key=lambda entry: (not entry.fits, entry.metrics.makespan))
    if as_json:
        echo_json([_facts(entry) for entry in entries])
        return
    echo_table(_rows(entries, in_bytes=not isinstance(model, UniformCosts)))


def _entry(text: str, size: tuple[int, int, int], model: Costs, memory: Memory | None) -> _Entry:
    ranks, microbatches, count = size
    family, options = parse(text)
    placement = family.place(ranks, count, None)
    limit = None if memory is None else memory.bytes(model, [placement])
    known: dict[str, Any] = {"costs": model} if family.uses_costs else {}
    if known and any(model.table(placement).activation_bytes):
        known["memory"] = limit
    schedule = build(
        text, num_ranks=ranks, num_microbatches=microbatches, stages_per_rank=count, **known
    )
    metrics = measure(schedule, simulate(schedule, model), model)
    written = ",".join(f"{name}={value}" for name, value in options.items())
    name = f"{family.name}:{written}" if written else family.name
    entry = _Entry(name, count, metrics, fits=True)
    return entry if limit is None else replace(entry, fits=entry.peak <= limit * (1 + 1e-9))


def _rows(entries: Sequence[_Entry], *, in_bytes: bool) -> list[tuple[str, ...]]:
    peak = "peak bytes" if in_bytes else "peak memory"
    rows: list[tuple[str, ...]] = [
        ("schedule", "stages/rank", "makespan", "bubble", "span", peak, "messages", "fits")
    ]
    for entry in entries:
        found = entry.metrics
        rows.append(
            (
                entry.family,
                str(entry.stages_per_rank),
                f"{found.makespan:g}",
                f"{found.makespan_bubble_rate:.1%}",
                f"{found.span:g}",
                f"{entry.peak:g}",
                str(found.messages),
                "yes" if entry.fits else "no",
            )
        )
    if all(entry.fits for entry in entries):
        rows = [row[:-1] for row in rows]
    return rows


def _facts(entry: _Entry) -> dict[str, object]:
    found = entry.metrics
    return {
        "schedule": entry.family,
        "stages_per_rank": entry.stages_per_rank,
        "makespan": found.makespan,
        "makespan_bubble_rate": found.makespan_bubble_rate,
        "span": found.span,
        "span_bubble_rate": found.span_bubble_rate,
        "peak_memory": entry.peak,
        "messages": found.messages,
        "message_bytes": found.message_bytes,
        "fits": entry.fits,
    }
