"""What each transport model lets through."""

from random import Random

import pytest
from tests.verify.brute_force import SENDS, runs
from tests.verify.support import errors, example, lowered, rules
from tests.verify.test_mutations import LOWERED

from fullbore.ir import KINDS, Action, Schedule
from fullbore.verify import MODELS

FACING = example("deadlock")  # 1f1b in which both ranks send before they receive

# Rank 1 sends twice before rank 0 receives, while rank 0 still has messages for it.
FAR_AHEAD = lowered(
    "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0F3 0SEND_F3 "
    "2RECV_F0 2RECV_F1 2F0 2F1 2RECV_F2 2F2 2RECV_F3 2F3",
    "1RECV_F0 1F0 1RECV_F1 1F1 1SEND_F0 1SEND_F1 1RECV_F2 1F2 1RECV_F3 1F3 1SEND_F2 1SEND_F3",
    ranks=(0, 1, 0),
    microbatches=4,
    forward_only=True,
)


def deadlocks(schedule: Schedule) -> tuple[bool, ...]:
    """For each model, strictest first."""
    return tuple("deadlock" in rules(schedule, model=model) for model in MODELS)


def test_sends_that_face_each_other_need_somewhere_to_wait():
    assert deadlocks(FACING) == (True, False, False)
    [found] = errors(FACING)
    assert found.message == (
        "with rendezvous transfers, rank 0 at 0SEND_F1 waits for 1RECV_F1 (rank 1); "
        "rank 1 at 1SEND_B0 waits for 0RECV_B0 (rank 0)"
    )
    assert (found.rank, found.step, found.action) == (0, 3, "0SEND_F1")


PAIRED = (
    "0F0 0SEND_F0 0F1 (0SEND_F1;0RECV_B0)SEND_F_RECV_B 0B0 0RECV_B1 0B1",
    "1RECV_F0 1F0 1B0 (1SEND_B0;1RECV_F1)SEND_B_RECV_F 1F1 1B1 1SEND_B1",
)
SINGLE = (
    "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
    "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1",
)


@pytest.mark.parametrize(
    "programs",
    [PAIRED, (PAIRED[0], SINGLE[1]), (SINGLE[0], PAIRED[1])],
    ids=["both", "rank 0", "rank 1"],
)
def test_a_batched_pair_on_either_side_is_enough(programs: tuple[str, str]):
    schedule = lowered(*programs, ranks=(0, 1), microbatches=2)
    assert deadlocks(schedule) == (False, False, False)


def test_one_message_can_be_on_its_way_per_edge():
    one_ahead = lowered(
        "0F0 0SEND_F0 2RECV_F0 0F1 0SEND_F1 0F2 0SEND_F2 2RECV_F1 2RECV_F2 2F0 2F1 2F2",
        "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1RECV_F2 1F1 1SEND_F1 1F2 1SEND_F2",
        ranks=(0, 1, 0),
        microbatches=3,
        forward_only=True,
    )
    assert deadlocks(one_ahead) == (False, False, False)
    assert deadlocks(FAR_AHEAD) == (True, True, False)
    [found] = errors(FAR_AHEAD, model="per_edge")
    assert found.message == (
        "with per_edge transfers, rank 0 at 0SEND_F3 waits for 1RECV_F2 (rank 1); "
        "rank 1 at 1SEND_F1 waits for 2RECV_F0 (rank 0)"
    )


def test_a_cycle_is_told_apart_from_those_who_wait_behind_it():
    schedule = lowered(
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1SEND_F0 1RECV_B0 1B0 1SEND_B0 1RECV_F1 1F1 1SEND_F1 1RECV_B1 1B1 1SEND_B1",
        "2RECV_F0 2F0 2B0 2SEND_B0 2RECV_F1 2F1 2B1 2SEND_B1",
        ranks=(0, 1, 2),
        microbatches=2,
    )
    [found] = errors(schedule)
    assert found.message == (
        "with rendezvous transfers, rank 0 at 0SEND_F1 waits for 1RECV_F1 (rank 1); "
        "rank 1 at 1SEND_B0 waits for 0RECV_B0 (rank 0). "
        "Behind them, rank 2 at 2RECV_F1 waits for 1SEND_F1 (rank 1)"
    )


def test_what_cannot_run_at_all_is_no_matter_of_the_transport():
    schedule = lowered(
        "0F0 0SEND_F0 0F1 0RECV_B1 0RECV_B0 0SEND_F1 0B0 0B1",
        "1RECV_F0 1F0 1RECV_F1 1F1 1B1 1SEND_B1 1B0 1SEND_B0",
        ranks=(0, 1),
        microbatches=2,
    )
    for model in MODELS:
        [found] = errors(schedule, model=model)
        assert found.rule == "cannot-run"
        assert found.message == (
            "rank 0 at 0RECV_B1 waits for 1SEND_B1 (rank 1); "
            "rank 1 at 1RECV_F1 waits for 0SEND_F1 (rank 0)"
        )


def channel(schedule: Schedule, action: Action) -> tuple[int, int] | None:
    """Sending and receiving rank of a transfer."""
    info, ranks = KINDS[action.kind], schedule.placement.ranks
    if info.mate is None:
        return None
    ends = ranks[action.stage], ranks[action.stage + info.stage_step]
    return ends if action.kind in SENDS else ends[::-1]


def with_late_transfers(schedule: Schedule, random: Random) -> Schedule:
    """Transfers moved behind other actions, but never behind those of their own channel, nor
    receives behind what uses them."""
    programs = [list(program) for program in schedule.programs]
    for program in programs:
        transfers = [action for action in program if channel(schedule, action)]
        for transfer in random.sample(transfers, len(transfers) // 3):
            place, (stage, _, microbatch, _) = program.index(transfer), transfer
            for _ in range(random.randint(1, 6)):
                after = program[place + 1 : place + 2]
                if not after or channel(schedule, after[0]) == channel(schedule, transfer):
                    break
                if any((x.stage, x.microbatch) == (stage, microbatch) for x in after[0].leaves):
                    break
                program[place : place + 2] = [*after, transfer]
                place += 1
    return schedule.with_programs(programs)


def test_late_transfers_deadlock_just_where_a_run_does():
    random, seen = Random(0), set()
    for schedule in [*LOWERED, FAR_AHEAD] * 10:
        late = with_late_transfers(schedule, random)
        verdicts = tuple(errors(late, model=model) == [] for model in MODELS)
        assert verdicts == tuple(runs(late, model=model) for model in MODELS)
        seen.add(verdicts)
    # A weaker model lets through what a stricter one does, and each lets through something more.
    assert seen == {
        (True, True, True),
        (False, True, True),
        (False, False, True),
        (False, False, False),
    }


def test_reordered_channels_are_no_deadlock():
    schedule = example("channel-order")
    assert [rules(schedule, model=model) for model in MODELS] == [["channel-order"]] * 3
    assert not any(runs(schedule, model=model) for model in MODELS)
