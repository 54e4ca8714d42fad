"""``fullbore diff``."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

import click

from fullbore.cli.help import examples
from fullbore.cli.output import echo_json, json_option
from fullbore.cli.source import Request, is_file, load_file, source_options
from fullbore.ir import Program, Schedule
from fullbore.view.blocks import count

SHOWN = 10


class Change(NamedTuple):
    """At a step of the first schedule and a step of the second, these actions differ."""

    first_step: int
    second_step: int
    first: list[str]
    second: list[str]


@click.command(
    epilog=examples(
        "fullbore diff mine.csv theirs.json",
        "fullbore diff mine.csv 1f1b --ranks 4 --microbatches 8",
    )
)
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@source_options
@json_option
def diff(first: str, second: str, request: Request, *, as_json: bool) -> None:
    """Show where two schedules differ, rank by rank.

    A and B are files or families; --ranks and the like are for families. Names are not compared.
    Exit code 1 if the schedules differ.
    """
    one, two = _read(first, request), _read(second, request)
    facts = {name: (before, after) for name, before, after in _facts(one, two) if before != after}
    changes = [compare(a, b) for a, b in zip_longest(one.programs, two.programs, fillvalue=())]
    if as_json:
        echo_json(
            {
                "equal": one == two,
                "facts": facts,
                "ranks": [[change._asdict() for change in found] for found in changes],
            }
        )
    elif one == two:
        click.echo(f"the same {count(one.num_actions, 'action')} on {count(one.num_ranks, 'rank')}")
    else:
        click.echo(f"- {first}\n+ {second}")
        for name, (before, after) in facts.items():
            click.echo(f"{name}: - {before}  + {after}")
        for rank, found in enumerate(changes):
            _print(rank, found)
    sys.exit(0 if one == two else 1)


def _read(source: str, request: Request) -> Schedule:
    return load_file(source, dialect=request.dialect) if is_file(source) else request.read(source)


def _facts(one: Schedule, two: Schedule) -> list[tuple[str, object, object]]:
    return [
        ("ranks", one.num_ranks, two.num_ranks),
        ("microbatches", one.num_microbatches, two.num_microbatches),
        ("form", one.form.value, two.form.value),
        ("forward only", one.forward_only, two.forward_only),
        ("placement", list(one.placement.ranks), list(two.placement.ranks)),
    ]


def compare(one: Program, two: Program) -> list[Change]:
    """What to change in the first program to get the second, in order."""
    before, after = [str(action) for action in one], [str(action) for action in two]
    changes: list[Change] = []
    i = j = 0
    for kept_i, kept_j in [*_kept(before, after), (len(before), len(after))]:
        if (i, j) != (kept_i, kept_j):
            changes.append(Change(i, j, before[i:kept_i], after[j:kept_j]))
        i, j = kept_i + 1, kept_j + 1
    return changes


def _kept(before: list[str], after: list[str]) -> list[tuple[int, int]]:
    """Where as many actions as possible stand that both have in the same order.

    An action occurs once in a sound program, so this is a longest ascending sequence of places,
    which takes n log n steps where comparing texts takes n squared. Where one occurs more often,
    the first is taken for the first, and so on.
    """
    places = dict(zip(_numbered(after), range(len(after)), strict=True))
    pairs = [(i, places[key]) for i, key in enumerate(_numbered(before)) if key in places]
    lowest: list[int] = []  # the lowest place that ends an ascending sequence of each length
    ends: list[int] = []  # which pair that is
    previous: list[int] = []  # the pair before each pair in its sequence, -1 if it is the first
    for number, (_, place) in enumerate(pairs):
        length = bisect_left(lowest, place)
        previous.append(ends[length - 1] if length else -1)
        lowest[length : length + 1] = [place]
        ends[length : length + 1] = [number]
    kept: list[tuple[int, int]] = []
    number = ends[-1] if ends else -1
    while number >= 0:
        kept.append(pairs[number])
        number = previous[number]
    return kept[::-1]


def _numbered(texts: list[str]) -> Iterator[tuple[str, int]]:
    """Each text with how often it occurred before."""
    counts: Counter[str] = Counter()
    for text in texts:
        yield text, counts[text]
        counts[text] += 1


def _print(rank: int, changes: list[Change]) -> None:
    if not changes:
        return
    click.echo(f"rank {rank}:")
    for change in changes:
        for sign, step, actions in (
            ("-", change.first_step, change.first),
            ("+", change.second_step, change.second),
        ):
            if actions:
                more = f" ... {len(actions) - SHOWN} more" if len(actions) > SHOWN else ""
                click.echo(f"  {sign} step {step}: {' '.join(actions[:SHOWN])}{more}")
