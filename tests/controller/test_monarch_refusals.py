"""What the Monarch engine refuses before it starts a process."""

import threading
from typing import Any

import pytest
from tests.controller.cases import make
from tests.reference import WIDTH, linear_tanh
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fullbore.errors import ParameterError

pytestmark = [pytest.mark.torch, pytest.mark.monarch]


def test_what_cannot_be_sent_is_named():
    stage = nn.Linear(WIDTH, WIDTH)
    stage.lock = threading.Lock()  # type: ignore[assignment]
    pp = make(2, [nn.Linear(WIDTH, WIDTH), stage], engine="monarch")
    with pytest.raises(ParameterError, match=r"stage 1 \(Linear\) cannot be sent .* Factory"):
        pp.initialize()


@pytest.mark.parametrize("meshes", ["gpu:0", []])
def test_other_meshes_are_refused(meshes: Any):
    with pytest.raises(
        ParameterError, match=r"meshes must be a number of ranks.* got ('gpu:0'|\[\])"
    ):
        make(meshes, linear_tanh(2), engine="monarch")


def test_wrappers_of_this_process_are_refused():
    store = dist.HashStore()  # type: ignore[attr-defined] # torch does not declare it as exported
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        inner, wrapped = linear_tanh(2)
        stages = [inner, nn.Sequential(DistributedDataParallel(wrapped))]
        pp = make(2, stages, engine="monarch")
        with pytest.raises(ParameterError, match="stage 1 is wrapped"):
            pp.initialize()
    finally:
        dist.destroy_process_group()
