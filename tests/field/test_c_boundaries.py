"""Field cases C11, C12, C15 and C22: what stages hand to each other, on the local engine, through
shared memory and over gloo, compared with the plain loop."""

from __future__ import annotations

from functools import partial
from typing import Any

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


BOUNDARIES = {
    "mask": (give_mask, take_mask),
    "None": (give_none, take_none),
    "number": (give_number, take_number),
    "dict": (give_dict, take_dict),
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


def ignore_aux(h: Tensor, *_: object) -> Tensor:
    return h


def unused(family: str) -> Scenario:
    return between(
        family, partial(Take, None, give_aux), partial(Take, ignore_aux), partial(Take, ignore_aux)
    )


@families
def test_c12_an_output_that_later_stages_ignore(runner: Runner, family: str) -> None:
    check(runner, unused, family)


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.linear(h)[:, :WIDTH]
        assert not out.is_contiguous()
        return out


def strided(family: str) -> Scenario:
    return between(family, Wide, Wide, Wide)


@families
def test_c15_outputs_that_are_not_contiguous(runner: Runner, family: str) -> None:
    check(runner, strided, family)


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
