"""Orders equal those of torch's generators, wherever these accept the parameters."""

from types import SimpleNamespace

import pytest
import torch
from torch.distributed.pipelining import schedules as torch_schedules

from fullbore.schedules import FAMILIES, build

pytestmark = pytest.mark.torch

NAMES = sorted(name for name, family in FAMILIES.items() if family.aliases)


@pytest.fixture(autouse=True)
def _only_the_compute_order(monkeypatch: pytest.MonkeyPatch):
    runtime = torch_schedules._PipelineScheduleRuntime
    monkeypatch.setattr(runtime, "_prepare_schedule_with_comms", lambda self, order: None)


def fake_stage(index: int, num_ranks: int, num_stages: int) -> SimpleNamespace:
    """What a generator reads of a stage; it asks no more of a real one."""
    return SimpleNamespace(
        stage_index=index,
        num_stages=num_stages,
        group_size=num_ranks,
        group_rank=0,
        is_first=index == 0,
        is_last=index == num_stages - 1,
        has_backward=True,
        submod=torch.nn.Identity(),
    )


def sizes(name: str) -> list[tuple[int, int, int]]:
    """``(P, V, M)``, without those that torch refuses."""
    family = FAMILIES[name]
    fixed = [family.default_stages_per_rank] if family.fixed_stages_per_rank else range(1, 5)
    every = [(p, v, m) for p in range(1, 9) for v in fixed for m in range(1, 33)]
    if name in ("1f1b", "dualpipev"):
        return [(p, v, m) for p, v, m in every if m >= p * v]
    if name.startswith("interleaved"):
        return [(p, v, m) for p, v, m in every if m % max(1, m // p) == 0]
    return every


def torch_order(name: str, num_ranks: int, stages_per_rank: int, microbatches: int) -> list[str]:
    """One line a rank."""
    make = torch_schedules.get_schedule_class(FAMILIES[name].aliases[0])
    num_stages = num_ranks * stages_per_rank
    stages = [fake_stage(v * num_ranks, num_ranks, num_stages) for v in range(stages_per_rank)]
    if issubclass(make, torch_schedules.PipelineScheduleSingle):
        order = make(stages[0], microbatches, loss_fn=max)._get_pipeline_order()
    else:
        order = make(stages, microbatches, loss_fn=max).pipeline_order
    lines = [" ".join(compute_actions(order[rank])) for rank in range(num_ranks)]
    if name == "1f1b":
        # The table of torch's last rank starts at F1 and ends with F<M>, which does not exist;
        # what torch runs is this.
        last = num_ranks - 1
        lines[last] = " ".join(f"{last}F{m} {last}B{m}" for m in range(microbatches))
    return lines


def compute_actions(program: list) -> list[str]:
    return [text for text in map(str, program) if text != "None" and "REDUCE_GRAD" not in text]


def our_order(name: str, num_ranks: int, stages_per_rank: int, microbatches: int) -> list[str]:
    schedule = build(
        name,
        num_ranks=num_ranks,
        num_microbatches=microbatches,
        stages_per_rank=stages_per_rank,
    )
    return [" ".join(map(str, program)) for program in schedule.programs]


@pytest.mark.parametrize("name", NAMES)
def test_orders_equal_torchs(name: str):
    for size in sizes(name):
        assert our_order(name, *size) == torch_order(name, *size), f"P, V, M = {size}"


def test_how_much_is_compared():
    assert sum(len(sizes(name)) for name in NAMES) == 3260


def test_the_table_of_torchs_last_rank_is_wrong_for_1f1b():
    # Should torch mend it, the exception above can go.
    make = torch_schedules.get_schedule_class("1F1B")
    order = make(fake_stage(0, 2, 2), 3, loss_fn=max)._get_pipeline_order()
    assert compute_actions(order[1]) == ["1F1", "1B0", "1F2", "1B1", "1F3", "1B2"]
