"""What goes to other processes and back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fullbore.controller.host import Request
from fullbore.controller.outcome import Raised, pack_failure, pack_result
from fullbore.controller.packing import Packed, pack, unpack
from fullbore.errors import ExecutionError, PeerFailed

pytestmark = [pytest.mark.torch, pytest.mark.monarch]

BASE = torch.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "tensor",
    [
        BASE,
        BASE[1],
        BASE[:, 1],
        BASE.transpose(0, 2),
        BASE.to(torch.bfloat16),
        BASE > 3,
        BASE.to(torch.complex64).conj(),
        torch.empty(0, 3),
        torch.tensor(2),
        BASE.to_sparse(),
        BASE.clone().requires_grad_(),
        nn.Parameter(BASE.clone()),
        nn.Parameter(BASE.clone(), requires_grad=False),
        torch.zeros(2, 4, 2, 2).to(memory_format=torch.channels_last),
    ],
)
def test_tensors_arrive_as_they_were(tensor: Tensor):
    found = unpack(pack(tensor))
    assert type(found) is type(tensor)
    assert (found.dtype, found.shape, found.requires_grad, found.layout) == (
        tensor.dtype,
        tensor.shape,
        tensor.requires_grad,
        tensor.layout,
    )
    dense = (found.to_dense(), tensor.to_dense()) if tensor.is_sparse else (found, tensor)
    assert torch.equal(*dense)
    if tensor.layout is torch.strided:
        assert found.stride() == tensor.stride()


def test_a_view_travels_without_what_it_is_a_view_of():
    whole = torch.zeros(1_000_000)
    assert len(pack(whole[:10])) < 1000


def test_what_is_one_stays_one():
    shared = nn.Linear(2, 2)
    first, second = unpack(pack([nn.Sequential(shared), nn.Sequential(shared)]))
    assert first[0] is second[0]
    one, other = unpack(pack([shared.weight, shared.weight]))
    assert one is other


def test_attributes_of_tensors_arrive():
    parameter = nn.Parameter(torch.ones(2))
    parameter.group = "slow"  # type: ignore[attr-defined]
    assert unpack(pack(parameter)).group == "slow"


def test_functions_of_a_test_arrive():
    factor = 3
    assert unpack(pack(lambda x: factor * x))(2) == 6


def test_what_is_packed_on_its_own_is_unpacked_when_it_is_needed():
    assert unpack(pack(Packed([1, 2]))).unpacked() == [1, 2]


def test_a_failure_keeps_its_type_its_notes_and_where_it_was():
    try:
        raise ValueError("boom")
    except ValueError as error:
        error.add_note("rank 1")
        found = unpack(pack_failure(error))
    assert isinstance(found, Raised)
    again = found.again()
    assert (type(again), again.args, again.__notes__) == (ValueError, ("boom",), ["rank 1"])
    assert "test_a_failure_keeps_its_type" in str(again.__cause__)
    assert not found.is_consequence


def test_what_follows_from_anothers_failure_is_known():
    assert unpack(pack_failure(PeerFailed("rank 0 failed"))).is_consequence
    follower = KeyError("x")
    follower.__cause__ = PeerFailed("rank 0 failed")
    assert unpack(pack_failure(follower)).is_consequence


def test_a_result_that_cannot_be_sent_is_a_failure():
    found = unpack(pack_result(i for i in [1]))
    assert isinstance(found, Raised)
    assert isinstance(found.again(), TypeError)


def test_an_exception_that_cannot_be_made_again_is_told_as_text():
    class Stubborn(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")

    again = unpack(pack_failure(Stubborn(1, 2))).again()
    assert isinstance(again, ExecutionError)
    assert str(again) == "Stubborn: 1 and 2"


def test_a_request_goes_to_the_stages_device():
    request = Request([(BASE, 3)], None, [BASE], (1.0,))
    args, kwargs, targets = request.parts("meta")
    assert args is not None
    assert targets is not None
    assert (args[0][0].device.type, args[0][1], kwargs) == ("meta", 3, None)
    assert targets[0].device.type == "meta"
    assert request.parts(None)[0] is request.args
