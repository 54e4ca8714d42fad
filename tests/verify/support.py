"""Schedules for the verifier's tests, made without the package's readers and passes."""

import re

from fullbore.ir import (
    KINDS,
    Action,
    Form,
    Kind,
    Placement,
    Schedule,
    executable_order,
    fuse,
    mate,
)
from fullbore.verify import RULES, Finding, verify

KIND = "|".join(sorted((kind.name for kind in Kind), key=len, reverse=True))
PLAIN = re.compile(rf"(-?\d+)({KIND})(-?\d*)")


def action(text: str) -> Action:
    """Reads more than the package does: ``0F``, ``0UNSHARD3``, ``()OVERLAP_F_B``."""
    if text.startswith("("):
        body, _, kind = text[1:].rpartition(")")
        return fuse(Kind[kind], *map(action, filter(None, body.split(";"))))
    found = PLAIN.fullmatch(text)
    assert found, text
    stage, name, microbatch = found.groups()
    return Action(int(stage), Kind[name], int(microbatch or -1))


def schedule(
    *programs: str,
    ranks: tuple[int, ...] = (0,),
    microbatches: int = 1,
    form: Form = Form.COMPUTE,
    forward_only: bool = False,
) -> Schedule:
    """``schedule("0F0 0B0")``: one text a rank, actions apart by blanks or commas."""
    read = tuple(tuple(map(action, text.replace(",", " ").split())) for text in programs)
    return Schedule(read, Placement(ranks), microbatches, form, forward_only)


def lowered(*programs: str, **options) -> Schedule:
    return schedule(*programs, form=Form.LOWERED, **options)


def example(rule: str) -> Schedule:
    shown = RULES[rule].example
    return schedule(
        *shown.csv.splitlines(),
        ranks=shown.ranks,
        microbatches=shown.num_microbatches,
        form=shown.form,
        forward_only=shown.forward_only,
    )


def errors(schedule: Schedule, **options) -> list[Finding]:
    return [found for found in verify(schedule, **options) if found.severity == "error"]


def rules(schedule: Schedule, **options) -> list[str]:
    return [found.rule for found in verify(schedule, **options)]


def with_transfers(compute: Schedule) -> Schedule:
    """Each send right behind what it sends, its receive put there at the same moment."""
    ranks = compute.placement.ranks
    programs: list[list[Action]] = [[] for _ in compute.programs]
    for rank, step in executable_order(compute).steps:
        done = compute.programs[rank][step]
        programs[rank].append(done)
        for leaf in done.leaves:
            kind = {Kind.F: Kind.SEND_F, Kind.B: Kind.SEND_B, Kind.I: Kind.SEND_B}.get(leaf.kind)
            if kind is None:
                continue
            send = Action(leaf.stage, kind, leaf.microbatch)
            target = leaf.stage + KINDS[kind].stage_step
            if 0 <= target < len(ranks) and ranks[target] != rank:
                programs[rank].append(send)
                programs[ranks[target]].append(mate(send))
    return compute.with_programs(programs, form=Form.LOWERED)


def with_sharding(lowered: Schedule) -> Schedule:
    """Every stage unsharded at first, reduced and resharded at last."""
    programs = [
        (
            *(Action(stage, Kind.UNSHARD) for stage in lowered.placement.stages_of(rank)),
            *program,
            *(Action(stage, Kind.REDUCE_GRAD) for stage in lowered.placement.stages_of(rank)),
            *(Action(stage, Kind.RESHARD) for stage in lowered.placement.stages_of(rank)),
        )
        for rank, program in enumerate(lowered.programs)
    ]
    return lowered.with_programs(programs)
