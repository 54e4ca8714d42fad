"""What a timed grid shows, whatever it is drawn on: labelled blocks of time on each rank's row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fullbore.ir import Action, Kind, Schedule
from fullbore.sim import UNIT_COSTS, Slot, Timeline

WITH_REDUCE_GRAD: Mapping[Kind, float] = {**UNIT_COSTS, Kind.REDUCE_GRAD: 1}

LEGEND: Mapping[Kind, tuple[str, str]] = {
    Kind.F: ("F", "forward"),
    Kind.B: ("B", "full backward"),
    Kind.I: ("I", "input gradient"),
    Kind.W: ("W", "weight gradient"),
    Kind.REDUCE_GRAD: ("R", "reduce gradients"),
}


class Block(NamedTuple):
    """A plain action that takes the time from ``start`` up to ``end``.

    ``shade`` is 0 or 1 in turn for the stages of a rank, ``joined`` says that the next block of the
    rank belongs to the same overlap.
    """

    action: Action
    start: int
    end: int
    label: str
    shade: int
    joined: bool


def shades_of(schedule: Schedule) -> Mapping[int, int]:
    """The shade of each stage: 0 and 1 in turn for the stages of a rank."""
    ranks = range(schedule.num_ranks)
    held = map(schedule.placement.stages_of, ranks)
    return {stage: place % 2 for stages in held for place, stage in enumerate(stages)}


def rows_of_blocks(
    schedule: Schedule, timeline: Timeline, *, compact: bool = False
) -> list[list[Block]]:
    """Each rank's blocks, in order; what takes no time has none.

    A compact label is one letter; others are the text of the action, less the stage if it is told
    by the rank.
    """
    shades = shades_of(schedule)
    numbered = schedule.placement.shape != "linear"

    def label(stage: int, kind: Kind, microbatch: int) -> str:
        letter = LEGEND[kind][0]
        if compact:
            return letter.lower() if shades[stage] else letter
        return (str(stage) * numbered) + letter + ("" if microbatch < 0 else str(microbatch))

    def blocks(slots: Sequence[Slot]) -> Iterator[Block]:
        for slot in slots:
            for later, leaf in zip(range(len(slot.leaves))[::-1], slot.leaves, strict=True):
                if leaf.end > leaf.start:
                    stage, kind, microbatch, _ = leaf.action
                    text = label(stage, kind, microbatch)
                    start, end = int(leaf.start), int(leaf.end)
                    yield Block(leaf.action, start, end, text, shades[stage], later > 0)

    return [list(blocks(slots)) for slots in timeline.ranks]


def count(number: int, one: str, many: str | None = None) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number} {one}" if number == 1 else f"{number} {many or one + 's'}"


def title(schedule: Schedule) -> str:
    """One line: what the schedule is called and how large it is."""
    shape = schedule.placement.shape
    stages = (
        "one stage each"
        if shape == "linear"
        else f"{count(schedule.num_stages, 'stage')} ({shape})"
    )
    mode = ", forward only" if schedule.forward_only else ""
    # A name comes from a file, and what it holds must not steer the terminal.
    name = schedule.name if schedule.name.isprintable() else ascii(schedule.name)
    return (
        f"{name or 'schedule'}: {count(schedule.num_ranks, 'rank')}, {stages}, "
        f"{count(schedule.num_microbatches, 'microbatch', 'microbatches')}{mode}"
    )


def kinds_of(rows: list[list[Block]]) -> list[Kind]:
    """The kinds that occur, in the order of the table."""
    return sorted({block.action.kind for row in rows for block in row})


def summary(timeline: Timeline, costs: Mapping[Kind, float], kinds: list[Kind]) -> str:
    """One line: makespan, bubble, and the costs behind them."""
    letters: dict[float, list[str]] = {}
    for kind in kinds:
        letters.setdefault(costs[kind], []).append(LEGEND[kind][0])
    units = ", ".join(f"{' = '.join(same)} = {cost:g}" for cost, same in letters.items())
    return (
        f"makespan {timeline.makespan:g}, busiest rank works {max(timeline.busy, default=0):g}: "
        f"bubble {timeline.makespan_bubble_rate:.1%} of makespan"
        f"{f' ({units} per stage)' if units else ''}"
    )
