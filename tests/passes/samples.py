"""Schedules for the tests of the passes."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from hypothesis import strategies as st

from fullbore.formats import loads
from fullbore.ir import Action, Form, Kind, Placement, Schedule
from fullbore.schedules import FAMILIES, build

TRANSFERS = (Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B)


def schedule(text: str, *, form: Form | None = None) -> Schedule:
    """From CSV text; blanks separate actions as well."""
    rows = [",".join(row.split()) for row in text.strip().splitlines()]
    return loads("\n".join(rows), format="csv", form=form)


def lines(found: Schedule) -> list[str]:
    """One line a rank."""
    return [" ".join(map(str, program)) for program in found.programs]


def built(
    *, ranks: tuple[int, ...], per_rank: tuple[int, ...], microbatches: tuple[int, ...]
) -> Iterator[Schedule]:
    """All families in all these sizes; V only where a family leaves the choice."""
    for name, family in FAMILIES.items():
        for p in ranks:
            for v in (None,) if family.fixed_stages_per_rank else per_rank:
                for m in microbatches:
                    yield build(name, num_ranks=p, stages_per_rank=v, num_microbatches=m)


def compute(found: Schedule) -> list[list[Action]]:
    """The plain compute actions of each rank, in order."""
    leaves = [[leaf for action in program for leaf in action.leaves] for program in found.programs]
    return [[leaf for leaf in program if leaf.kind <= Kind.W] for program in leaves]


@st.composite
def orders(draw: st.DrawFn) -> Schedule:
    """Any legal compute order on any placement: what runs next is drawn from all that could."""
    stages = draw(st.integers(1, 6))
    drawn = draw(st.lists(st.integers(0, 3), min_size=stages, max_size=stages))
    names = sorted(set(drawn))
    placement = Placement(tuple(names.index(rank) for rank in drawn))
    return random_order(
        placement,
        draw(st.integers(1, 5)),
        Random(draw(st.integers(0, 999_999))),
        forward_only=draw(st.integers(0, 9)) == 0,
    )


def random_order(
    placement: Placement, num_microbatches: int, random: Random, *, forward_only: bool
) -> Schedule:
    programs: list[list[Action]] = [[] for _ in range(placement.num_ranks)]
    ready = [Action(0, Kind.F, m) for m in range(num_microbatches)]
    while ready:
        action = ready.pop(random.randrange(len(ready)))
        stage, kind, m, _ = action
        programs[placement.ranks[stage]].append(action)
        backward = random.choice((Kind.B, Kind.I))
        if kind is Kind.I:
            ready.append(Action(stage, Kind.W, m))
        if kind is Kind.F and stage + 1 < placement.num_stages:
            ready.append(Action(stage + 1, Kind.F, m))
        elif kind is Kind.F and not forward_only:
            ready.append(Action(stage, backward, m))
        elif kind in (Kind.B, Kind.I) and stage > 0:
            ready.append(Action(stage - 1, backward, m))
    return Schedule(
        tuple(map(tuple, programs)), placement, num_microbatches, forward_only=forward_only
    )
