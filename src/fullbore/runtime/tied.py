"""Parameters that several stages have in common, such as an embedding that is the head as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import permutations

import torch
from torch import Tensor, nn

from fullbore.errors import ParameterError
from fullbore.ir import Placement
from fullbore.runtime.checksum import checksum, local_part
from fullbore.runtime.names import bare_module, find_parameter, plain_name
from fullbore.runtime.stage import Stage
from fullbore.runtime.transport.base import GATHER_STAGE, Edge, Transport, make_tag


@dataclass(frozen=True, slots=True, order=True)
class _Holder:
    """A stage that has the parameter, and what the parameter is called in its module."""

    stage: int
    name: str
    rank: int

    def __str__(self) -> str:
        return f"{self.stage}.{self.name}"


class TiedParameters:
    """Adds the gradients of tied parameters up on all stages that have them.

    A parameter that is one object in several stages of a process gathers their gradients by itself.
    Copies, in one process or in several, each find a part, which they exchange after the backward.

    Args:
        groups: the parameters that are one, as ``"STAGE.NAME"``, the same on every rank.
        placement: says which rank has which stage.

    Raises:
        ParameterError: a group makes no sense.
    """

    def __init__(self, groups: Sequence[Sequence[str]], placement: Placement) -> None:
        self._groups = [sorted(_parse(group, placement)) for group in groups]
        self._stages: Mapping[int, Stage] = {}
        named = [str(holder) for group in self._groups for holder in group]
        twice = next((name for name in named if named.count(name) > 1), None)
        if twice is not None:
            raise ParameterError(
                f"tied: {twice} is named twice; put all that is one into one group"
            )

    def __str__(self) -> str:
        return ", ".join(" = ".join(map(str, group)) for group in self._groups)

    @property
    def edges(self) -> set[Edge]:
        """The links that copies on different ranks need."""
        ranks = [{holder.rank for holder in group} for group in self._groups]
        return {edge for among in ranks for edge in permutations(among, 2)}

    @property
    def names(self) -> list[tuple[str, ...]]:
        """All groups: those that were given, and the parameters found to be one object in several
        stages of this process."""
        given = [tuple(map(str, group)) for group in self._groups]
        known = {name for group in given for name in group}
        found: dict[nn.Parameter, list[str]] = {}
        for index, stage in self._stages.items():
            for name, parameter in bare_module(stage).named_parameters():
                found.setdefault(parameter, []).append(f"{index}.{plain_name(name)}")
        shared = (tuple(group) for group in found.values() if len(group) > 1)
        return given + [group for group in shared if not known.issuperset(group)]

    def bind(self, stages: Mapping[int, Stage]) -> None:
        """Take the stages of this process.

        Raises:
            ParameterError: one of them has no such parameter.
        """
        self._stages = stages
        for group in self._groups:
            self._own(group)

    def is_copy(self, parameter: Tensor) -> bool:
        """Whether another stage has the same parameter and comes first."""
        for group in self._groups:
            first, *rest = group
            original = self._own([first])
            if any(parameter is copy for copy in self._own(rest)):
                return not any(parameter is own for own in original)
        return False

    @contextmanager
    def summed(self, epoch: int, transport: Transport) -> Iterator[None]:
        """What the backward inside adds to the gradient of a copy is added to all copies' gradient.

        Raises:
            ParameterError: the copies are not equal.
        """
        split = [(i, self._own(group)) for i, group in enumerate(self._groups)]
        split = [(i, own) for i, own in split if own and (len(own) > 1 or self._travels(i))]
        before = {parameter: parameter.grad for _, own in split for parameter in own}
        for parameter in before:
            parameter.grad = None
        try:
            yield
            for index, own in split:
                total = self._total(index, own, (epoch, transport))
                for parameter in own:
                    parameter.grad = None if total is None else _like(total, parameter)
        finally:
            # After a failure too: what was there is never lost.
            for parameter, gradient in before.items():
                if gradient is not None:
                    part = parameter.grad
                    parameter.grad = gradient if part is None else gradient + part

    def _travels(self, index: int) -> bool:
        return len({holder.rank for holder in self._groups[index]}) > 1

    def _own(self, group: Sequence[_Holder]) -> list[nn.Parameter]:
        """The distinct parameters of these that this process has."""
        found: dict[int, nn.Parameter] = {}
        for holder in group:
            if holder.stage not in self._stages:
                continue
            parameter = find_parameter(self._stages[holder.stage], holder.name)
            if parameter is None:
                raise ParameterError(
                    f"tied: stage {holder.stage} has no parameter {holder.name!r}; "
                    "named_parameters() of the stage's module tells the names"
                )
            found[id(parameter)] = parameter
        return list(found.values())

    def _total(
        self, index: int, own: Sequence[nn.Parameter], call: tuple[int, Transport]
    ) -> Tensor | None:
        """The sum over all copies, added in the same order on every rank."""
        epoch, transport = call
        group = self._groups[index]
        ours = _add([p.grad for p in own])
        checks = [checksum(p) for p in own]
        parts = dict.fromkeys(transport.ranks, ours)
        others = sorted({holder.rank for holder in group} - set(transport.ranks))
        tag = make_tag(epoch, GATHER_STAGE, index, backward=True)
        for rank in others:
            (me,) = transport.ranks
            transport.post((rank, me), tag)
        for rank in others:
            transport.send((me, rank), tag, (ours, checks[0]))
        for rank in others:
            parts[rank], check = transport.recv((rank, me), tag)
            checks.append(check)
        transport.flush()
        if any(not torch.equal(check, checks[0]) for check in checks):
            raise ParameterError(
                f"the copies of the tied parameter {' = '.join(map(str, group))} are not equal: "
                "give them the same values before the first step, and update all of them alike"
            )
        return _add([parts[rank] for rank in sorted(parts)] if others else [ours])


def _parse(group: Sequence[str], placement: Placement) -> Iterator[_Holder]:
    if isinstance(group, str) or len(group) < 2:
        raise ParameterError(f"tied: a group names two parameters or more; got {group!r}")
    for text in group:
        stage, _, name = text.partition(".")
        if not stage.isdecimal() or int(stage) >= placement.num_stages or not name:
            raise ParameterError(
                f"tied: a parameter is named STAGE.NAME, with a stage of 0.."
                f"{placement.num_stages - 1}, such as '0.embedding.weight'; got {text!r}"
            )
        yield _Holder(int(stage), name, placement.ranks[int(stage)])


def _add(parts: Sequence[Tensor | None]) -> Tensor | None:
    whole = [local_part(part) for part in parts if part is not None]
    # An embedding's may be sparse, a head's is not.
    found = [part.to_dense() if part.is_sparse else part for part in whole]
    return reduce(torch.add, found) if found else None


def _like(total: Tensor, parameter: Tensor) -> Tensor:
    """A gradient of its own for ``parameter``."""
    if not hasattr(parameter, "to_local"):
        return total.clone()
    from torch.distributed.tensor import DTensor

    assert isinstance(parameter, DTensor)
    return DTensor.from_local(
        total.clone(),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
