"""Field cases C11, C12, C15 and C22: what stages hand to each other, on the local engine, through
shared memory and over gloo, compared with the plain loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from tests.field.scenarios import Runner, Scenario, Take, between, check
from tests.reference import WIDTH
from torch import Tensor, nn

pytestmark = [pytest.mark.torch, pytest.mark.gloo]

families = pytest.mark.parametrize(
    "family", ["1f1b", "interleaved_zero_bubble", "zbv_zero_bubble", "dualpipev"]
)


def masked(out: Tensor) -> tuple[Tensor, Tensor]:
    return out, torch.arange(out.shape[0]) * 10


def give_mask(out: Tensor, *_: object) -> Any:
    return masked(out)


def take_mask(h: Tensor, mask: Tensor) -> Tensor:
    assert (mask.dtype, mask.requires_grad) == (torch.long, False)
    return h + mask.unsqueeze(1) / 10


def give_none(out: Tensor, *_: object) -> Any:
    return out, None


def take_none(h: Tensor, nothing: object) -> Tensor:
    assert nothing is None
    return h


def give_number(out: Tensor, *_: object) -> Any:
    return out, 3


def take_number(h: Tensor, number: object) -> Tensor:
    assert type(number) is int
    return h * 3


def give_dict(out: Tensor, *_: object) -> Any:
    return {"h": out}


def take_dict(value: Any) -> Tensor:
    assert list(value) == ["h"]
    hidden: Tensor = value["h"]
    return hidden


class Packed(NamedTuple):
    hidden: Tensor
    lengths: list[int]


def give_packed(out: Tensor, *_: object) -> Any:
    return Packed(out, [3, 1])


def take_packed(value: Any) -> Tensor:
    assert type(value) is Packed
    assert value.lengths == [3, 1]
    hidden: Tensor = value.hidden
    return hidden


def give_plain(out: Tensor, *_: object) -> Any:
    return None, "causal", True, -0.0, [out]


def take_plain(*values: Any) -> Tensor:
    assert repr(values[:4]) == "(None, 'causal', True, -0.0)"
    (hidden,) = values[4]
    assert isinstance(hidden, Tensor)
    return hidden


def give_nested(out: Tensor, *_: object) -> Any:
    return [{"pair": (out, out.square()), "keep": out.detach() > 0}, out.sum()]


def take_nested(value: Any, total: Tensor) -> Tensor:
    left, right = value["pair"]
    assert (value["keep"].dtype, total.shape) == (torch.bool, ())
    return torch.where(value["keep"], left * total, right)


def give_dtypes(out: Tensor, *_: object) -> Any:
    return out.bfloat16(), out.double(), out.detach().to(torch.int8)


def take_dtypes(low: Tensor, high: Tensor, count: Tensor) -> Tensor:
    assert (low.dtype, high.dtype, count.dtype) == (torch.bfloat16, torch.float64, torch.int8)
    return low.float() + high.float() + count


def give_one(out: Tensor, *_: object) -> Any:
    return (out,)


BOUNDARIES = {
    "mask": (give_mask, take_mask),
    "None": (give_none, take_none),
    "number": (give_number, take_number),
    "dict": (give_dict, take_dict),
    "named tuple": (give_packed, take_packed),
    "plain values": (give_plain, take_plain),
    "nested": (give_nested, take_nested),
    "several dtypes": (give_dtypes, take_dtypes),
    "one": (give_one, None),
}


def boundary(what: str, family: str) -> Scenario:
    give, take = BOUNDARIES[what]
    return between(
        family, partial(Take, None, give), partial(Take, take, give), partial(Take, take)
    )


@families
@pytest.mark.parametrize("what", BOUNDARIES)
def test_c11_it_arrives_as_it_was_sent(runner: Runner, what: str, family: str) -> None:
    check(runner, partial(boundary, what), family)


def give_aux(out: Tensor, *_: object) -> Any:
    return out, out.square()


def carry_aux(out: Tensor, *args: Any) -> Any:
    """The first stage's second output reaches the last stage as it was."""
    return out, args[1] if len(args) > 1 else out.square()


def use_aux(h: Tensor, aux: Tensor) -> Tensor:
    return h * aux


def carried(family: str) -> Scenario:
    return between(
        family,
        partial(Take, None, carry_aux),
        partial(Take, ignore_aux, carry_aux),
        partial(Take, use_aux),
    )


@families
def test_c12_an_output_that_only_the_last_stage_uses(runner: Runner, family: str) -> None:
    check(runner, carried, family)


def ignore_aux(h: Tensor, *_: object) -> Tensor:
    return h


def unused(family: str) -> Scenario:
    return between(
        family, partial(Take, None, give_aux), partial(Take, ignore_aux), partial(Take, ignore_aux)
    )


@families
def test_c12_an_output_that_later_stages_ignore(runner: Runner, family: str) -> None:
    check(runner, unused, family)


def transpose(h: Tensor) -> Tensor:
    return h.t().contiguous().t()


def widen(h: Tensor) -> Tensor:
    return h.repeat(1, 2)[:, :WIDTH]


def stride(h: Tensor) -> Tensor:
    return h.repeat_interleave(2, 1)[:, ::2]


def expand(h: Tensor) -> Tensor:
    return h.mean(1, keepdim=True).expand(-1, WIDTH)


STRIDES = {"a slice": widen, "a stride": stride, "a transpose": transpose, "expanded": expand}


class Strided(nn.Module):
    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.change = nn.Linear(WIDTH, WIDTH), change

    def forward(self, h: Tensor) -> Tensor:
        out = self.change(self.linear(h))
        assert not out.is_contiguous()
        return out


def strided(what: str, family: str) -> Scenario:
    stage = partial(Strided, STRIDES[what])
    return between(family, stage, stage, stage)


@families
@pytest.mark.parametrize("what", STRIDES)
def test_c15_outputs_that_are_not_contiguous(runner: Runner, what: str, family: str) -> None:
    check(runner, partial(strided, what), family)


def give_ids(out: Tensor, *args: Any) -> Any:
    ids = args[1] if len(args) > 1 else torch.arange(out.shape[0])
    return out, ids + 1


def take_ids(h: Tensor, ids: Tensor) -> Tensor:
    assert (ids.dtype, ids.requires_grad) == (torch.int64, False)
    return h + ids.unsqueeze(1)


def tagged(family: str) -> Scenario:
    return between(
        family,
        partial(Take, None, give_ids),
        partial(Take, take_ids, give_ids),
        partial(Take, take_ids),
    )


@pytest.mark.parametrize("family", ["interleaved_1f1b", "zbv_zero_bubble", "dualpipev"])
def test_c22_floats_and_integers_through_several_stages(runner: Runner, family: str) -> None:
    check(runner, tagged, family)
