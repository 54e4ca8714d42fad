"""The same result as torch's functions, or a better one."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from random import Random

import pytest
from tests.passes.samples import built, lines, random_order, schedule
from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.pipelining.schedules import _Action as TorchAction

from fullbore.errors import PassError
from fullbore.ir import Form, Placement, Schedule
from fullbore.passes import (
    ExpandOverlap,
    FuseOverlap,
    InsertCommunication,
    InsertReduceGrad,
    InsertUnshard,
    MergeBackward,
    SinkReceives,
)
from fullbore.verify import MODELS, check, verify

pytestmark = pytest.mark.torch


def to_torch(found: Schedule) -> dict[int, list[TorchAction]]:
    return {
        rank: [action for text in map(str, program) if (action := TorchAction.from_str(text))]
        for rank, program in enumerate(found.programs)
    }


def texts(orders: Mapping[int, Sequence[TorchAction | None]]) -> list[str]:
    return [" ".join(map(str, orders[rank])) for rank in sorted(orders)]


def torch_lowered(found: Schedule) -> dict[int, list[TorchAction]]:
    ranks = found.placement.ranks
    return torch_schedules._add_send_recv(to_torch(found), ranks.__getitem__, len(ranks))


def samples() -> Iterator[Schedule]:
    """Families, also with all they can overlap and with nothing overlapped, and random orders."""
    for found in built(ranks=(1, 2, 3, 4, 6, 8), per_rank=(1, 2, 3), microbatches=(1, 2, 3, 5, 8)):
        yield found
    for found in built(ranks=(2, 4), per_rank=(1, 2), microbatches=(2, 7)):
        plain = ExpandOverlap()(found)
        yield plain
        yield FuseOverlap()(plain)
    random = Random(0)
    for ranks in [(0,), (0, 1), (0, 1, 1, 0), (1, 0, 2, 0), (0, 0, 1, 1), (2, 1, 0, 2, 1, 0)]:
        for m in (1, 2, 3, 4):
            found = random_order(Placement(ranks), m, random, forward_only=False)
            yield found
            yield FuseOverlap()(found)


SAMPLES = list(samples())


def test_how_much_is_compared():
    assert len(SAMPLES) > 400


def test_communication():
    for found in SAMPLES:
        assert lines(InsertCommunication()(found)) == texts(torch_lowered(found)), found.parameters


def test_communication_around_sharding_and_reduction():
    for found in SAMPLES[::5]:
        full = InsertReduceGrad()(InsertUnshard()(found))
        assert lines(InsertCommunication()(full)) == texts(torch_lowered(full)), found.parameters


def test_reduction():
    for found in SAMPLES:
        if found.forward_only:
            continue
        theirs = {
            rank: torch_schedules._add_reduce_grad(list(program), found.num_microbatches)
            for rank, program in to_torch(found).items()
        }
        assert lines(InsertReduceGrad()(found)) == texts(theirs)


def in_order(line: str) -> list[Sequence[str]]:
    """Actions with neighbouring RESHARDs sorted: torch frees them in the order of a set."""
    runs = groupby(line.split(), key=lambda text: text.endswith("RESHARD"))
    return [sorted(run) if freeing else list(run) for freeing, run in runs]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_sharding(keep: int):
    for found in SAMPLES[:: 7 - keep]:
        theirs = [
            " ".join(map(str, torch_schedules._add_unshard_reshard(list(program), keep)))
            for program in to_torch(found).values()
        ]
        for ours, line in zip(lines(InsertUnshard(keep)(found)), theirs, strict=True):
            assert in_order(ours) == in_order(line)


def test_merge():
    for found in SAMPLES:
        theirs = {r: torch_schedules._merge_bw(list(p)) for r, p in to_torch(found).items()}
        assert lines(MergeBackward()(found)) == texts(theirs)


def test_torch_lowers_what_cannot_run():
    """It never asks whether a stage's forward came before its backward."""
    found = schedule("0B0 0F0")
    assert texts(torch_lowered(found)) == ["0B0 0F0"]
    with pytest.raises(PassError, match="rank 0 at step 0, 0B0, waits for 0F0"):
        InsertCommunication()(found)


def test_what_torch_refuses_is_refused():
    found = schedule("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0")
    with pytest.raises(AssertionError, match="can't schedule sends/recvs"):
        torch_lowered(found)
    with pytest.raises(PassError, match="rank 0 at step 1, 0B0, waits for 1B0 or 1I0"):
        InsertCommunication()(found)


def test_late_receives_keep_the_order_of_the_sends_where_torchs_do_not():
    """Torch's deferral moves receives past each other; on one channel tensors then swap places."""
    broken = 0
    for found in built(ranks=(2, 3, 4), per_rank=(2,), microbatches=(4, 6)):
        lowered = InsertCommunication()(found)
        ranks = found.placement.ranks
        deferred = torch_schedules._defer_recv_ops(to_torch(lowered), ranks.__getitem__)
        theirs = lowered.with_programs(
            schedule("\n".join(texts(deferred)), form=Form.LOWERED).programs
        )
        broken += any(f.severity == "error" for f in verify(theirs, model="buffered"))
        for model in MODELS:
            check(SinkReceives()(lowered), model=model)
    assert broken > 5
