"""Files that torch itself wrote, and files for torch."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import nn
from torch.distributed.pipelining import schedules as theirs

from fullbore.formats import dumps, load, save
from fullbore.ir import Form, Placement

pytestmark = pytest.mark.torch

NUM_RANKS = 4


def torch_schedule(name: str, placement: Placement, num_microbatches: int):
    """Torch's schedule on rank 0, whose stages know no more than their places."""
    stages = [
        SimpleNamespace(
            stage_index=index,
            num_stages=placement.num_stages,
            group_size=placement.num_ranks,
            group_rank=0,
            submod=nn.Identity(),
            is_first=index == 0,
            is_last=index == placement.num_stages - 1,
        )
        for index in placement.stages_of(0)
    ]
    return theirs.get_schedule_class(name)(stages, num_microbatches)


def texts(order: dict) -> list[list[str]]:
    return [[str(action) for action in order[rank] if action] for rank in sorted(order)]


@pytest.mark.parametrize(
    ("name", "placement"),
    [
        ("LoopedBFS", Placement.loop(NUM_RANKS, 2)),
        ("InterleavedZeroBubble", Placement.loop(NUM_RANKS, 2)),
        ("ZBVZeroBubble", Placement.vee(NUM_RANKS)),
        ("DualPipeV", Placement.vee(NUM_RANKS)),
    ],
)
def test_what_torch_dumps_is_loaded(tmp_path: Path, name: str, placement: Placement):
    schedule = torch_schedule(name, placement, 8)
    for what, order in (
        ("compute_only", schedule.pipeline_order),
        ("compute_comms", schedule.pipeline_order_with_comms),
    ):
        path = tmp_path / f"{what}.csv"
        schedule._dump_csv(path, format=what)
        found = load(path)
        assert [list(map(str, program)) for program in found.programs] == texts(order)
        assert found.placement == placement
        assert found.num_microbatches == 8
        assert found.form is (Form.COMPUTE if what == "compute_only" else Form.LOWERED)
        assert not found.forward_only


def test_what_is_saved_is_loaded_by_torch(tmp_path: Path):
    schedule = torch_schedule("DualPipeV", Placement.vee(NUM_RANKS), 8)
    before = texts(schedule.pipeline_order_with_comms)
    schedule._dump_csv(tmp_path / "theirs.csv", format="compute_comms")
    save(load(tmp_path / "theirs.csv"), tmp_path / "ours.csv")
    again = torch_schedule("DualPipeV", Placement.vee(NUM_RANKS), 8)
    again.pipeline_order_with_comms = {}
    again._load_csv(tmp_path / "ours.csv", format="compute_comms")
    assert texts(again.pipeline_order_with_comms) == before
    assert dumps(load(tmp_path / "ours.csv"), format="csv").count("\n") == NUM_RANKS
