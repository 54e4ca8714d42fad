"""Random valid schedules, and single changes to them.

Everything is drawn from a ``Random``: Hypothesis, left to itself, prefers what is small and the
same twice, and most of that is a schedule of one stage and a change that changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from tests.passes.samples import random_order

from fullbore.ir import KINDS, Action, Form, Kind, Placement, Schedule, fuse
from fullbore.passes import lower, run_passes
from fullbore.schedules import build
from fullbore.verify import verify

Programs = list[list[Action]]

FAMILIES = {
    "gpipe": (None,),
    "1f1b": (None,),
    "looped_bfs": (1, 2, 3),
    "interleaved_1f1b": (1, 2, 3),
    "interleaved_zero_bubble": (1, 2, 3),
    "zbv_zero_bubble": (None,),
    "dualpipev": (None,),
    "forward_only": (1, 2),
}


def known(random: Random) -> Schedule:
    """A family's schedule, small."""
    name = random.choice(sorted(FAMILIES))
    return build(
        name,
        num_ranks=random.randint(1, 3),
        num_microbatches=random.randint(1, 5),
        stages_per_rank=random.choice(FAMILIES[name]),
    )


def placement(random: Random, num_ranks: int | None) -> Placement:
    """Any placement of up to six stages, or of up to four more than there must be ranks."""
    if num_ranks is None:
        drawn = [random.randrange(4) for _ in range(random.randint(1, 6))]
    else:
        drawn = [*range(num_ranks), *random.choices(range(num_ranks), k=random.randrange(5))]
        random.shuffle(drawn)
    names = sorted(set(drawn))
    return Placement(tuple(map(names.index, drawn)))


def overlapped(
    random: Random, *, num_ranks: int | None = None, forward_only: bool | None = None
) -> Schedule:
    """Any legal order on any placement, with some neighbours fused in either order."""
    plain = random_order(
        placement(random, num_ranks),
        random.randint(1, 5),
        random,
        forward_only=random.randrange(10) == 0 if forward_only is None else forward_only,
    )
    programs: Programs = []
    for program in plain.programs:
        fused: list[Action] = []
        for action in program:
            if fused and _may_overlap(fused[-1], action) and random.randrange(2):
                parts = (fused.pop(), action)
                fused.append(fuse(Kind.OVERLAP_F_B, *parts[:: random.choice((1, -1))]))
            else:
                fused.append(action)
        programs.append(fused)
    found = plain.with_programs(programs)
    # Two ranks' overlaps can wait for each other.
    return found if is_valid(found) else plain


def _may_overlap(first: Action, second: Action) -> bool:
    kinds = {first.kind, second.kind}
    return kinds in ({Kind.F, Kind.B}, {Kind.F, Kind.I}) and first[::2] != second[::2]


def lowered(random: Random, schedule: Schedule) -> Schedule:
    """``schedule`` with its messages, under any options."""
    shard = random.randrange(2) == 0
    return lower(
        schedule,
        shard=shard,
        max_active_stages=random.choice((None, 1, 2, 5)) if shard else None,
        lookahead=random.choice((None, 1, 2, "auto")) if shard else None,
        reduce_grad=random.choice((None, True)),
        sink=random.randrange(2) == 0,
        batch=random.randrange(2) == 0,
    )


BEFORE = ("merge_backward", "split_backward", "fuse_overlap", "expand_overlap")
AFTER = ("batch_communication", "unbatch_communication", "sink_receives")


def transformed(random: Random, schedule: Schedule) -> Schedule:
    """A compute schedule after some passes, lowered, and after some more."""
    before = random.choices(BEFORE, k=random.randrange(4))
    plan = lowered(random, run_passes(schedule, ",".join(before)))
    return run_passes(plan, ",".join(random.choices(AFTER, k=random.randrange(3))))


def valid(random: Random) -> Schedule:
    """A valid schedule in either form."""
    compute = random.choice((known, overlapped))(random)
    return lowered(random, compute) if random.randrange(3) else compute


def is_valid(schedule: Schedule) -> bool:
    return all(finding.severity != "error" for finding in verify(schedule))


def _programs(schedule: Schedule) -> Programs:
    return [list(program) for program in schedule.programs]


def _pick(random: Random, programs: Programs) -> tuple[list[Action], int]:
    program = random.choice([p for p in programs if p])
    return program, random.randint(0, len(program) - 1)


def swap(random: Random, schedule: Schedule) -> Schedule:
    programs = _programs(schedule)
    program, first = _pick(random, programs)
    second = random.randint(0, len(program) - 1)
    program[first], program[second] = program[second], program[first]
    return schedule.with_programs(programs)


def swap_neighbours(random: Random, schedule: Schedule) -> Schedule:
    programs = _programs(schedule)
    program, first = _pick(random, programs)
    program[first : first + 2] = program[first : first + 2][::-1]
    return schedule.with_programs(programs)


def drop(random: Random, schedule: Schedule) -> Schedule:
    programs = _programs(schedule)
    program, place = _pick(random, programs)
    del program[place]
    return schedule.with_programs(programs)


def duplicate(random: Random, schedule: Schedule) -> Schedule:
    programs = _programs(schedule)
    program, place = _pick(random, programs)
    program.insert(random.randint(0, len(program)), program[place])
    return schedule.with_programs(programs)


def move(random: Random, schedule: Schedule) -> Schedule:
    programs = _programs(schedule)
    program, place = _pick(random, programs)
    action = program.pop(place)
    program.insert(random.randint(0, len(program)), action)
    return schedule.with_programs(programs)


def move_to_another_rank(random: Random, schedule: Schedule) -> Schedule:
    programs = _programs(schedule)
    program, place = _pick(random, programs)
    action = program.pop(place)
    other = random.choice(programs)
    other.insert(random.randint(0, len(other)), action)
    return schedule.with_programs(programs)


def exchange_ranks(random: Random, schedule: Schedule) -> Schedule:
    programs = _programs(schedule)
    first, second = (random.randint(0, len(programs) - 1) for _ in range(2))
    programs[first], programs[second] = programs[second], programs[first]
    return schedule.with_programs(programs)


def retarget(random: Random, schedule: Schedule) -> Schedule:
    """Another stage, microbatch or kind of an action, or of one part of it."""
    programs = _programs(schedule)
    program, place = _pick(random, programs)
    action = program[place]
    which = random.randint(-1, len(action.parts) - 1)
    if which >= 0:
        parts = list(action.parts)
        parts[which] = _retargeted(random, schedule, parts[which])
        program[place] = action._replace(parts=tuple(parts))
    else:
        program[place] = _retargeted(random, schedule, action)
    return schedule.with_programs(programs)


def _retargeted(random: Random, schedule: Schedule, action: Action) -> Action:
    match random.choice(("stage", "microbatch", "kind", "parts")):
        case "stage":
            return action._replace(stage=random.randint(-2, schedule.num_stages + 1))
        case "microbatch":
            return action._replace(microbatch=random.randint(-2, schedule.num_microbatches + 1))
        case "kind":
            return action._replace(kind=random.choice(list(Kind)))
        case _:
            parts = action.parts[:-1] if action.parts else (action,)
            return action._replace(parts=parts)


def take_apart(random: Random, schedule: Schedule) -> Schedule:
    """A fused action's parts one after another, in either order; or two neighbours fused."""
    programs = _programs(schedule)
    program, place = _pick(random, programs)
    action = program[place]
    if action.parts:
        program[place : place + 1] = action.parts[:: random.choice((1, -1))]
    elif place + 1 < len(program):
        kind = random.choice([k for k, info in KINDS.items() if info.fused])
        program[place : place + 2] = [fuse(kind, *program[place : place + 2])]
    return schedule.with_programs(programs)


def replace_stage(random: Random, schedule: Schedule) -> Schedule:
    """Another rank for one stage, in the placement alone."""
    ranks = list(schedule.placement.ranks)
    stage = random.randint(0, len(ranks) - 1)
    ranks[stage] = random.randint(0, schedule.num_ranks)
    return replace(schedule, placement=Placement(tuple(ranks)))


def relabel(random: Random, schedule: Schedule) -> Schedule:
    """Another number of microbatches, form or mode."""
    match random.choice(("microbatches", "form", "mode")):
        case "microbatches":
            by = random.choice((-1, 1))
            return replace(schedule, num_microbatches=schedule.num_microbatches + by)
        case "form":
            return replace(schedule, form=random.choice(list(Form)))
        case _:
            return replace(schedule, forward_only=not schedule.forward_only)


Change = Callable[[Random, Schedule], Schedule]

CHANGES: tuple[Change, ...] = (
    *(swap, swap_neighbours, drop, duplicate, move, move_to_another_rank, exchange_ranks),
    *(retarget, take_apart, replace_stage, relabel),
)
