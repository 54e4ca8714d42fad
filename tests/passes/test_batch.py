from tests.passes.samples import built, compute, lines, schedule

from fullbore.passes import BatchCommunication, UnbatchCommunication, lower
from fullbore.verify import check


def test_neighbours_on_both_ranks_make_two_pairs():
    before = schedule(
        """
        0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1
        1RECV_F0 1F0 1B0 1RECV_F1 1SEND_B0 1F1 1B1 1SEND_B1
        """
    )
    assert lines(BatchCommunication()(before)) == [
        "0F0 0SEND_F0 0F1 (0SEND_F1;0RECV_B0)SEND_F_RECV_B 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1B0 (1SEND_B0;1RECV_F1)SEND_B_RECV_F 1F1 1B1 1SEND_B1",
    ]


def test_neighbours_on_one_rank_make_one():
    before = schedule("0F0 0SEND_F0 0RECV_B0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0")
    after = BatchCommunication()(before)
    assert lines(after) == [
        "0F0 (0SEND_F0;0RECV_B0)SEND_F_RECV_B 0B0",
        "1RECV_F0 1F0 1B0 1SEND_B0",
    ]
    check(after)


def test_only_with_one_peer_and_in_opposite_directions():
    before = schedule(
        """
        0F0 0SEND_F0 0RECV_B0 0B0
        1RECV_F0 1F0 1SEND_F0 1RECV_B0 1B0 1SEND_B0
        2RECV_F0 2F0 2SEND_F0 2RECV_B0 2B0 2SEND_B0
        3RECV_F0 3F0 3B0 3SEND_B0
        """
    )
    after = BatchCommunication()(before)
    pairs = [str(action) for _, _, action in after.actions() if action.parts]
    assert pairs == [f"({s}SEND_F0;{s}RECV_B0)SEND_F_RECV_B" for s in range(3)]


def test_the_halves_come_apart_in_the_order_of_the_peer():
    gradient_first = schedule(
        """
        0F0 0SEND_F0 0F1 0RECV_B0 0SEND_F1 0B0 0RECV_B1 0B1
        1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1
        """
    )
    on_one = gradient_first.with_programs(
        [BatchCommunication()(gradient_first).programs[0], gradient_first.programs[1]]
    )
    check(on_one)
    assert any(action.parts for action in on_one.programs[0])
    assert UnbatchCommunication()(on_one) == gradient_first


def test_results_are_valid_and_final():
    pairs = 0
    for found in built(ranks=(1, 3), per_rank=(2,), microbatches=(4,)):
        for sink in (False, True):
            before = lower(found, sink=sink)
            after = BatchCommunication()(before)
            check(after)
            assert BatchCommunication()(after) == after
            apart = UnbatchCommunication()(after)
            check(apart)
            assert compute(apart) == compute(before)
            assert [sorted(program) for program in apart.programs] == [
                sorted(program) for program in before.programs
            ]
            pairs += before.num_actions - after.num_actions
    assert pairs > 40
