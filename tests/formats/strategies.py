"""Schedules that files can hold. Most of them would never run: that is the verifier's business."""

from collections.abc import Sequence
from itertools import chain

from hypothesis import strategies as st

from fullbore.ir import KINDS, Action, Form, Group, Kind, Placement, Program, Schedule, fuse

PLAIN = [kind for kind, info in KINDS.items() if not info.fused]
COMPUTE = [kind for kind in PLAIN if KINDS[kind].group is Group.COMPUTE]
PAIRS = [Kind.SEND_F_RECV_B, Kind.SEND_B_RECV_F]

microbatches = st.integers(0, 12)


def placements() -> st.SearchStrategy[Placement]:
    sizes = st.integers(1, 3)
    return st.one_of(
        sizes.map(Placement.linear),
        st.builds(Placement.loop, sizes, sizes),
        sizes.map(Placement.vee),
        st.just(Placement((1, 0, 0, 1))),
    )


def plain(stages: tuple[int, ...], kinds: Sequence[Kind]) -> st.SearchStrategy[Action]:
    def action(stage: int, kind: Kind, microbatch: int) -> Action:
        return Action(stage, kind, microbatch if KINDS[kind].has_microbatch else -1)

    return st.builds(action, st.sampled_from(stages), st.sampled_from(kinds), microbatches)


def pairs(stages: tuple[int, ...]) -> st.SearchStrategy[Action]:
    return st.sampled_from(PAIRS).flatmap(
        lambda kind: st.tuples(*(plain(stages, [part]) for part in KINDS[kind].parts)).map(
            lambda parts: fuse(kind, *parts)
        )
    )


def overlaps(stages: tuple[int, ...]) -> st.SearchStrategy[Action]:
    parts = st.lists(plain(stages, COMPUTE), min_size=1, max_size=3)
    return parts.map(lambda found: fuse(Kind.OVERLAP_F_B, *found))


def reduced(stages: tuple[int, ...]) -> st.SearchStrategy[Program]:
    """A weight gradient or full backward with its reduction directly after it."""
    return plain(stages, [Kind.B, Kind.W]).map(
        lambda action: (action, Action(action.stage, Kind.REDUCE_GRAD))
    )


def chunks(stages: tuple[int, ...], dialect: str) -> st.SearchStrategy[Program]:
    if dialect == "torch":
        single = st.one_of(plain(stages, PLAIN), pairs(stages), overlaps(stages))
    else:
        kinds = [kind for kind in PLAIN if kind is not Kind.REDUCE_GRAD]
        single = st.one_of(plain(stages, kinds), pairs(stages))
    return st.one_of(single.map(lambda action: (action,)), reduced(stages))


@st.composite
def schedules(draw: st.DrawFn, *, dialect: str = "torch") -> Schedule:
    """Every stage occurs, on its rank only, so that a CSV can hold the schedule."""
    placement = draw(placements())
    programs = []
    for rank in range(placement.num_ranks):
        stages = placement.stages_of(rank)
        program = [Action(stage, Kind.F, draw(microbatches)) for stage in stages]
        program += chain.from_iterable(draw(st.lists(chunks(stages, dialect), max_size=4)))
        programs.append(tuple(program))
    leaves = [leaf for program in programs for action in program for leaf in action.leaves]
    kinds = {action.kind for program in programs for action in program}
    lowered = any(KINDS[kind].group is not Group.COMPUTE for kind in kinds)
    return Schedule(
        tuple(programs),
        placement,
        max(leaf.microbatch for leaf in leaves) + 1,
        Form.LOWERED if lowered else Form.COMPUTE,
        forward_only=not any(leaf.kind in (Kind.B, Kind.I, Kind.W) for leaf in leaves),
    )
