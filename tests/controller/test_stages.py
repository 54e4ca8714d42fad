"""What stages may be given as."""

from typing import Any

import pytest
from torch import nn

from fullbore.controller import Factory
from fullbore.controller.stages import check_stages, tie_shared
from fullbore.errors import ParameterError

pytestmark = pytest.mark.torch

SHARED, OWN = nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
STAGES = [nn.Sequential(SHARED), nn.Sequential(OWN, SHARED), nn.Sequential(SHARED)]


@pytest.mark.parametrize(
    ("process_of", "tied", "expected"),
    [
        ((0, 0, 0), (), []),
        ((0, 1, 0), (), [("0.0.weight", "1.1.weight")]),
        ((0, 1, 2), (), [("0.0.weight", "1.1.weight", "2.0.weight")]),
        ((0, 1, 1), [("0.0.weight", "2.0.weight")], [("0.0.weight", "2.0.weight")]),
    ],
)
def test_what_stages_of_several_processes_share_is_tied(process_of: Any, tied: Any, expected: Any):
    assert tie_shared(STAGES, process_of, tied) == expected


def test_what_factories_build_is_not_known():
    stages = [Factory(nn.Linear, 2, 2)] * 2
    assert tie_shared(stages, (0, 1), ()) == []


def test_a_stage_may_be_a_list_of_one_or_a_path():
    found = check_stages([[OWN], "torch.nn.Identity", Factory(nn.Identity)])
    assert found[0] is OWN
    assert isinstance(found[1], Factory)
    assert isinstance(found[1].build(), nn.Identity)


@pytest.mark.parametrize("target", [3, "build", None])
def test_a_factory_needs_something_to_call(target: Any):
    with pytest.raises(ParameterError, match="Factory: give the dotted path"):
        Factory(target)
