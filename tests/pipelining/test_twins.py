"""Programs for torch.distributed.pipelining give the same numbers once their import is changed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.pipelining.programs import CSV, from_csv, manual, traced
from tests.pool import Pool
from torch import Tensor

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

THEIRS, OURS = "torch.distributed.pipelining", "fullbore.pipelining"


def assert_equal(found: Any, wanted: Any) -> None:
    """Bit for bit."""
    match wanted:
        case Tensor():
            torch.testing.assert_close(found, wanted, rtol=0.0, atol=0.0)
        case dict():
            assert found.keys() == wanted.keys()
            for key in wanted:
                assert_equal(found[key], wanted[key])
        case list() | tuple():
            assert len(found) == len(wanted)
            for one, other in zip(found, wanted, strict=True):
                assert_equal(one, other)
        case _:
            assert found == wanted


NAMES = ["GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS"]
NAMES += ["InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]


@pytest.mark.parametrize("name", NAMES)
def test_stages_cut_by_hand(pool: Callable[[int], Pool], name: str):
    found, wanted = (pool(2).run(manual, api, name, 4) for api in (OURS, THEIRS))
    assert len(wanted[0]) + len(wanted[1]) > 12
    assert_equal(found, wanted)


@pytest.mark.parametrize("by", ["pipe.build_stage", "build_stage"])
def test_a_traced_model(pool: Callable[[int], Pool], by: str):
    found, wanted = (pool(2).run(traced, api, by) for api in (OURS, THEIRS))
    assert len(wanted[1][1]) == 4
    assert_equal(found, wanted)


def test_a_schedule_from_a_file(pool: Callable[[int], Pool], tmp_path: Path):
    (tmp_path / "compute.csv").write_text(CSV)
    found, wanted = (pool(2).run(from_csv, api, str(tmp_path)) for api in (OURS, THEIRS))
    assert_equal(found, wanted)
