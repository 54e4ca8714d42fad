"""V-Min: a V at a third of the memory of 1F1B."""

from __future__ import annotations

from fullbore.ir import Action, Kind, Placement, Schedule
from fullbore.schedules.family import Family

_PERIOD = 6  # two F, two I and two W a rank


def build(placement: Placement, num_microbatches: int) -> Schedule:
    """A building block, the slots of one microbatch, repeated every six slots (table 8 of the
    paper): F, F, I and I follow each other from rank to rank without a gap, so that activations
    live as short as can be. Each W takes the next free slot.

    The block is laid out for F = I = W. Where they differ, ranks wait in every period.
    """
    programs = (_program(rank, placement, num_microbatches) for rank in range(placement.num_ranks))
    return Schedule(tuple(map(tuple, programs)), placement, num_microbatches)


def _program(rank: int, placement: Placement, num_microbatches: int) -> list[Action]:
    num_ranks = placement.num_ranks
    down, up = placement.stages_of(rank)
    # Two slots more at the turn, or a rank's slots would coincide.
    turn = 2 if num_ranks % 3 == 0 else 0
    block = [
        (rank, Action(down, Kind.F)),
        (2 * num_ranks - rank - 1, Action(up, Kind.F)),
        (2 * num_ranks + turn + rank, Action(up, Kind.I)),
        (4 * num_ranks + turn - rank - 1, Action(down, Kind.I)),
    ]
    taken = {slot % _PERIOD for slot, _ in block}
    for slot, action in block[2:]:
        free = next(s for s in range(slot + 1, slot + 1 + _PERIOD) if s % _PERIOD not in taken)
        taken.add(free % _PERIOD)
        block.append((free, Action(action.stage, Kind.W)))
    slots = sorted(
        (slot + _PERIOD * microbatch, action._replace(microbatch=microbatch))
        for slot, action in block
        for microbatch in range(num_microbatches)
    )
    return [action for _, action in slots]


FAMILY = Family(
    name="v_min",
    build=build,
    shape="vee",
    description="V of two stages a rank, split backwards; a third of the memory of 1f1b",
    source="Qi et al. 2024, Pipeline Parallelism with Controllable Memory, arXiv:2405.15362",
    instead="gis",
)
