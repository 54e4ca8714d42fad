"""Changes to valid schedules: the verifier comes to the verdict of an obvious, slow run."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.verify.brute_force import runs
from tests.verify.support import errors, lowered, with_sharding, with_transfers

from fullbore.ir import Action, Kind, Placement, Schedule
from fullbore.schedules import build
from fullbore.verify import MODELS

COMPUTE = [
    build("1f1b", num_ranks=2, num_microbatches=2),
    build("interleaved_1f1b", num_ranks=2, num_microbatches=2, stages_per_rank=2),
    build("interleaved_zero_bubble", num_ranks=3, num_microbatches=2, stages_per_rank=1),
    build("zbv_zero_bubble", num_ranks=2, num_microbatches=3),
    build("dualpipev", num_ranks=2, num_microbatches=4),
    build("forward_only", num_ranks=2, num_microbatches=2, placement=Placement((1, 0, 0, 1))),
]
BATCHED = lowered(
    "0F0 0SEND_F0 0F1 (0SEND_F1;0RECV_B0)SEND_F_RECV_B 0B0 0RECV_B1 0B1",
    "1RECV_F0 1F0 1B0 (1SEND_B0;1RECV_F1)SEND_B_RECV_F 1F1 1B1 1SEND_B1",
    ranks=(0, 1),
    microbatches=2,
)
LOWERED = [with_transfers(compute) for compute in COMPUTE]
SHARDED = [with_sharding(LOWERED[0]), with_sharding(LOWERED[3])]
VALID = [*COMPUTE, *LOWERED, *SHARDED, BATCHED]


def names(schedules: list[Schedule]) -> list[str]:
    return [f"{number} {s.name} {s.form.value}" for number, s in enumerate(schedules)]


@pytest.mark.parametrize("schedule", VALID, ids=names(VALID))
@pytest.mark.parametrize("model", MODELS)
def test_valid_schedules_pass_and_run(schedule: Schedule, model: str):
    assert errors(schedule, model=model) == []
    assert runs(schedule, model=model)


Program = list[Action]


def swap(draw: st.DrawFn, program: Program) -> None:
    first, second = draw(places(program)), draw(places(program))
    program[first], program[second] = program[second], program[first]


def drop(draw: st.DrawFn, program: Program) -> None:
    del program[draw(places(program))]


def duplicate(draw: st.DrawFn, program: Program) -> None:
    program.insert(draw(places(program)), program[draw(places(program))])


def move(draw: st.DrawFn, program: Program) -> None:
    action = program.pop(draw(places(program)))
    program.insert(draw(st.integers(0, len(program))), action)


def retarget(draw: st.DrawFn, program: Program) -> None:
    """Another stage, microbatch or kind, within the range that occurs and just beyond."""
    place = draw(places(program))
    stage, kind, microbatch, parts = program[place]
    which = draw(st.integers(0, max(len(parts) - 1, 0)))
    if parts:
        stage, kind, microbatch, _ = parts[which]
    by = draw(st.sampled_from((-1, 1)))
    match draw(st.sampled_from(("stage", "microbatch", "kind"))):
        case "stage":
            stage += by
        case "microbatch":
            microbatch += by
        case _:
            kind = draw(st.sampled_from(list(Kind)[:8]))
    changed = Action(stage, kind, microbatch)
    if parts:
        program[place] = Action(
            -1, program[place].kind, -1, (*parts[:which], changed, *parts[which + 1 :])
        )
    else:
        program[place] = changed


def places(program: Program) -> st.SearchStrategy[int]:
    return st.integers(0, len(program) - 1)


MUTATIONS: tuple[Callable[[st.DrawFn, Program], None], ...] = (
    swap,
    drop,
    duplicate,
    move,
    retarget,
)


@st.composite
def mutants(draw: st.DrawFn, *, most: int = 1) -> Schedule:
    """A valid schedule after one or more changes, one of which may carry an action elsewhere."""
    schedule = draw(st.sampled_from(VALID))
    programs = [list(program) for program in schedule.programs]
    for _ in range(draw(st.integers(1, most))):
        program = draw(st.sampled_from(programs))
        if not draw(st.integers(0, 9)):
            other = draw(st.sampled_from(programs))
            other.insert(draw(st.integers(0, len(other))), program.pop(draw(places(program))))
        else:
            draw(st.sampled_from(MUTATIONS))(draw, program)
    return schedule.with_programs(programs)


@settings(max_examples=120)
@given(mutants(), st.sampled_from(MODELS))
def test_the_verdict_on_one_change_is_that_of_a_run(schedule: Schedule, model: str):
    assert (errors(schedule, model=model) == []) == runs(schedule, model=model)


@settings(max_examples=80)
@given(mutants(most=4), st.sampled_from(MODELS))
def test_the_verdict_on_several_changes_is_that_of_a_run(schedule: Schedule, model: str):
    assert (errors(schedule, model=model) == []) == runs(schedule, model=model)


def neighbours_swapped(schedule: Schedule) -> Iterator[Schedule]:
    for rank, program in enumerate(schedule.programs):
        for step in range(len(program) - 1):
            changed = [*program[:step], program[step + 1], program[step], *program[step + 2 :]]
            programs = [*schedule.programs[:rank], changed, *schedule.programs[rank + 1 :]]
            yield schedule.with_programs(programs)


@pytest.mark.parametrize("schedule", LOWERED, ids=names(LOWERED))
def test_swapped_neighbours(schedule: Schedule):
    verdicts: Counter[bool] = Counter()
    for mutant in neighbours_swapped(schedule):
        accepted = errors(mutant) == []
        assert accepted == runs(mutant), mutant.programs
        verdicts[accepted] += 1
    assert verdicts[False]
    assert verdicts[True] or schedule.forward_only
